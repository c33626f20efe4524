"""A candidate in its child, timed: the judge's clock around calls that it starts.

A sample is several calls, each over arrays of its own, whose inputs nobody saw before and whose
outputs begin as noise; the child stands still before and after them. Of every so many samples one
call's outputs are judged. Letting a child run and seeing it stop takes some 50 microseconds, which
a sample of SAMPLE_SECONDS has in it once.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.foreign.candidate import Candidate, with_numerics
from kernels.foreign.child import PLACES, Call, Child, Limits, layout_of
from kernels.foreign.judge import Subject
from kernels.foreign.layout import laid_out
from kernels.guard import poison
from kernels.judge import compare
from reference.op import Arguments, Array, Case, Op

SAMPLE_SECONDS = 5e-3
MOST_CALLS = 512  # of a sample, and of their arrays
MOST_BYTES = 2**27
SETS = 3  # of inputs that are kept, where to make them anew would take long
ANEW = 2**22  # bytes of inputs up to which each call has its own
CHECK_EVERY = 5  # samples


class WrongOutputError(RuntimeError):
    """A candidate that was being timed gave what is not right."""


class Clocked:
    """A candidate at one case. Call it for the next sample: seconds of a call."""

    def __init__(
        self, candidate: Candidate, op: Op, case: Case, numerics: str = "", threads: int = 1,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self.op, activations = with_numerics(op, numerics or candidate.manifest.numerics)
        self.case, self.subject = case, Subject(self.op, activations)
        self.rng = np.random.default_rng()
        self.taken = self.checked = 0
        self._sets = [op.make(replace(case, seed=case.seed + i)) for i in range(SETS)]
        self.bytes = sum(v.nbytes for v in self._sets[0].values() if isinstance(v, np.ndarray))
        self.child = Child(candidate, laid_out(candidate, self.op), limits or Limits(), threads)
        self.calls = 1
        most = max(1, min(MOST_CALLS, MOST_BYTES // max(1, self.bytes)))
        try:
            self()  # compiles, and touches what it uses
            while (seconds := self() * self.calls) < SAMPLE_SECONDS and self.calls < most:
                more = math.ceil(self.calls * min(8.0, SAMPLE_SECONDS / max(seconds, 1e-7)))
                self.calls = min(most, max(more, self.calls + 1))
        except BaseException:
            self.close()
            raise
        self.taken = 0

    def __call__(self) -> float:
        child, place = self.child, PLACES[self.taken % len(PLACES)]
        given = [self._inputs() for _ in range(self.calls)]
        child.inputs.clear()
        child.outputs.clear()
        calls = [
            layout_of(child, self.op, self.case.shape, self.case.format, i, place, self.rng)
            for i in given
        ]
        child.prepare(calls)
        for call, inputs in zip(calls, given, strict=True):
            for name, slot in call.inputs.items():
                child.inputs.array(slot)[...] = inputs[name]
            for slot in call.outputs.values():
                poison(child.outputs.array(slot), self.rng)
        seconds = child.run(self.calls) / self.calls
        if self.taken % CHECK_EVERY == 0:
            at = int(self.rng.integers(self.calls))
            self._check(given[at], calls[at])
        self.taken += 1
        return seconds

    def _inputs(self) -> Arguments:
        seed = int(self.rng.integers(2**31))
        if self.bytes <= ANEW:
            return self.op.make(replace(self.case, seed=seed))
        found = self._sets[seed % SETS]
        name = max(
            (n for n, v in found.items() if isinstance(v, np.ndarray) and v.dtype == np.float32),
            key=lambda n: -found[n].size,
            default=None,
        )
        return {**found, name: self.rng.permutation(found[name], axis=-1)} if name else found

    def outputs(self, call: Call) -> dict[str, Array]:
        return {name: self.child.outputs.array(slot) for name, slot in call.outputs.items()}

    def _check(self, inputs: Arguments, call: Call) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            verdict = compare(self.subject, self.case, inputs, self.outputs(call))
        if not verdict.passed:
            raise WrongOutputError(f"while it was timed, {verdict.failure}")
        self.checked += 1

    def close(self) -> None:
        self.child.close()

    def __enter__(self) -> "Clocked":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
