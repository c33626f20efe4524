"""A kernel's trial on a GPU: the op's quick cases, then as many random ones as there is time for.

Run as a program (`python -m bench.cuda.trial SECONDS`) it is the child of `kernels.certify`, as
kernels.trial is.
"""

import sys
import time
from collections.abc import Iterator

import numpy as np

from kernels.call import AnyKernel
from kernels.certificates import Certificate
from kernels.judge import judge, replay
from kernels.trial import CASES, Request, Tell, Tried, answer, certificate_of
from reference.op import Case, Op

GROWTH = 5 / 4  # how far beyond the largest awkward size random ones go


def random_cases(op: Op, format: str | None, rng: np.random.Generator) -> Iterator[Case]:
    """Awkward sizes and all between, without end."""
    while True:
        sizes = {
            axis: int(rng.choice(awkward))
            if tuple(awkward) == (0, 1) or rng.random() < 0.5  # the former are switches
            else int(rng.integers(min(awkward), int(max(awkward) * GROWTH) + 1))
            for axis, awkward in op.axes.items()
        }
        values = op.values[rng.integers(len(op.values))]
        yield op.case(sizes, values, int(rng.integers(2**32)), format)


def cases(kernel: AnyKernel, seconds: float) -> Iterator[Case]:
    """All quick ones, however long they take."""
    started = time.perf_counter()
    yield from kernel.spec.quick_cases(kernel.format)
    for case in random_cases(kernel.spec, kernel.format, np.random.default_rng(0)):
        if time.perf_counter() - started > seconds:
            return
        yield case


def tried(kernel: AnyKernel, request: Request, seconds: float, tell: Tell) -> Certificate:
    started = time.perf_counter()

    def attempt(case: Case) -> Tried:
        again = replay(kernel.name, case)
        tell(CASES, again)
        return Tried(CASES, judge(kernel, case), again)

    taken = (case for case in cases(kernel, seconds) if kernel.takes(case.shape))
    return certificate_of(kernel, map(attempt, taken), request, started)


def main() -> None:
    seconds = float(sys.argv[1])
    answer(lambda kernel, request, tell: tried(kernel, request, seconds, tell))


if __name__ == "__main__":
    main()
