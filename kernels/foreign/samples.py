"""Timing samples of a candidate: calls started by the judge, each on fresh inputs; some of the
outputs are judged afterwards.

A sample is a turn of several calls, long enough to hide the cost of resuming and stopping the
child. Every call has its own inputs in its own memory, so nothing can be cached between calls; all
outputs must be written, and those of one randomly drawn call are judged.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from kernels.foreign.candidate import Candidate
from kernels.foreign.child import Child, Ended, Limits, layout_of
from kernels.foreign.judge import REFUSED, Judge
from kernels.foreign.turns import Wrote
from kernels.guard import poison
from kernels.judge import compare
from reference.op import Arguments, Array, Case, Op

SAMPLE_SECONDS = 2e-3
MOST_CALLS, MOST_BYTES = 64, 2**28  # per sample
WARMING = 3  # turns of a single call, the fastest of which sets the number of calls per sample
JUDGED_FIRST, JUDGED_EVERY = (
    2,
    4,
)  # samples of which a call is judged: the first ones, then one in four

Make = Callable[[int], Arguments]
Check = Callable[[int, Arguments, Mapping[str, Array]], str]


class WrongTimedError(RuntimeError):
    """A candidate whose output was wrong while it was being timed."""


CAUGHT = (*REFUSED, Ended, Wrote, WrongTimedError)  # how a wrong candidate ends


class Samples:
    """Seconds per call, sample by sample. `make(seed)` gives fresh inputs; `check(seed, inputs,
    outputs)` returns a complaint about the outputs."""

    def __init__(
        self, child: Child, op: Op, format: str | None, shape: Mapping[str, int],
        make: Make, check: Check, secret: int, most_calls: int = MOST_CALLS,
    ) -> None:  # fmt: skip
        self.op = op
        self._child, self._format, self._shape = child, format, shape
        self._make, self._check = make, check
        self._rng = np.random.default_rng(secret)
        self.calls, self.taken, self.checked = 1, 0, 0
        example = make(0)
        arrays = [v for v in example.values() if isinstance(v, np.ndarray)]
        self.bytes = max(1, sum(a.nbytes for a in arrays))
        seconds = min(self() for _ in range(WARMING))
        fit = max(1, MOST_BYTES // self.bytes)
        self.calls = max(1, min(most_calls, fit, round(SAMPLE_SECONDS / max(seconds, 1e-7))))
        self.taken = 0

    def __call__(self) -> float:
        """Take the next sample."""
        child, rng = self._child, self._rng
        child.inputs.clear()
        child.outputs.clear()
        seeds = [int(rng.integers(2**31)) for _ in range(self.calls)]
        given = [self._make(seed) for seed in seeds]
        calls = [
            layout_of(child, self.op, self._shape, self._format, inputs, (0,), rng)
            for inputs in given
        ]
        child.prepare(calls)
        spoilt = []
        for call, inputs in zip(calls, given, strict=True):
            for name, slot in call.inputs.items():
                child.inputs.array(slot)[...] = inputs[name]
            for slot in call.outputs.values():
                poison(child.outputs.array(slot), rng)
            spoilt.append({n: child.outputs.array(slot).copy() for n, slot in call.outputs.items()})
        seconds = child.run(self.calls) / self.calls
        self._look(calls, seeds, given, spoilt)
        self.taken += 1
        return seconds

    def _look(self, calls: list, seeds: list, given: list, spoilt: list) -> None:  # type: ignore[type-arg]
        outputs = self._child.outputs
        if (where := outputs.spoilt()) or self._child.inputs.spoilt():
            raise Wrote(f"while it was timed, it wrote {where or 'beside'} an array")
        found = [
            {name: outputs.array(slot).copy() for name, slot in call.outputs.items()}
            for call in calls
        ]
        for number, (left, before) in enumerate(zip(found, spoilt, strict=True)):
            for name, value in left.items():
                width = f"u{value.itemsize}"
                same = value.view(width) == before[name].view(width)
                if value.dtype.kind == "f" and same.any():
                    raise WrongTimedError(
                        f"while it was timed, call {number + 1} of {len(calls)} did not write"
                        f" {same.sum()} of {same.size} of {name}"
                    )
        if self.taken < JUDGED_FIRST or self._rng.integers(JUDGED_EVERY) == 0:
            one = int(self._rng.integers(len(calls)))
            if failure := self._check(seeds[one], given[one], found[one]):
                raise WrongTimedError(f"while it was timed: {failure}")
            self.checked += 1
        if not self._child.stands_still():
            raise Wrote("while it was timed, it went on after it had stopped")
        for call, left in zip(calls, found, strict=True):
            for name, slot in call.outputs.items():
                if outputs.array(slot).tobytes() != left[name].tobytes():
                    raise Wrote(f"{name} changed after the timed call had ended")


@contextmanager
def sampled(
    candidate: Candidate, spec: Op, format: str | None, shape: Mapping[str, int],
    limits: Limits | None = None, numerics: str = "", secret: int | None = None,
    most_calls: int = MOST_CALLS,
) -> Iterator[Samples]:  # fmt: skip
    """Samples of a candidate's time at a shape, each of at most so many calls, while its child
    lives.

    Raises one of CAUGHT, here or from a later sample, if it cannot be loaded or is wrong where it
    is timed.
    """
    judging = Judge(candidate, spec, format, "quick", limits, numerics, secret)
    op, sizes = judging.op, dict(shape)

    def case(seed: int) -> Case:
        return op.case(sizes, op.values[0], seed, judging.format)

    def check(seed: int, inputs: Arguments, outputs: Mapping[str, Array]) -> str:
        with np.errstate(over="ignore", invalid="ignore"):
            return compare(judging.subject, case(seed), inputs, outputs).failure

    def make(seed: int) -> Arguments:
        return op.make(case(seed))

    try:
        child = judging.turns().child
        about = (op, judging.format, case(0).shape, make, check, judging.secret)
        yield Samples(child, *about, most_calls)
    finally:
        judging.close()
