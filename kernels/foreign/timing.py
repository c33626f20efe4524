"""A candidate timed: the judge's clock, around calls on fresh inputs some of which are judged."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from kernels.foreign.candidate import Candidate
from kernels.foreign.child import Ended, Limits
from kernels.foreign.judge import REFUSED, Judge
from kernels.foreign.samples import MOST_CALLS, Samples, WrongTimedError
from kernels.foreign.turns import Wrote
from kernels.judge import compare
from reference.op import Arguments, Array, Case, Op

CAUGHT = (*REFUSED, Ended, Wrote, WrongTimedError)


@contextmanager
def sampled(
    candidate: Candidate, spec: Op, format: str | None, shape: Mapping[str, int],
    limits: Limits | None = None, numerics: str = "", secret: int | None = None,
    most_calls: int = MOST_CALLS,
) -> Iterator[Samples]:  # fmt: skip
    """Samples of its time at a shape, of so many calls at most, while its child lives.

    One of CAUGHT, here or from a later sample, if it cannot be loaded or is not right where it is
    timed.
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
        child = judging.load().child
        about = (op, judging.format, case(0).shape, make, check, judging.secret)
        yield Samples(child, *about, most_calls)
    finally:
        judging.close()
