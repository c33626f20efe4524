"""A kernel's trial at level quick: the op's seeded cases before the judge.

Run as a program (`python -m kernels.trial`) it is the child of `kernels.certify`: it reads kernel
names from standard input and writes a JSON line for each in turn, so that whoever started it knows
which kernel took the process down.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime

import numpy as np

from kernels.call import AnyKernel
from kernels.certificates import Certificate, Key, code_of, construction_of
from kernels.judge import Candidate, Verdict, judge, replay
from kernels.table import find_any


def certificate_of(
    kernel: AnyKernel, verdicts: Iterable[Verdict], level: str, started: float
) -> Certificate:
    """The certificate that these verdicts give; the first failure ends the trial."""
    cases, worst, nmse, failure = 0, 0.0, 0.0, construction_of(kernel)
    for verdict in () if failure else verdicts:
        cases += 1
        worst = max(worst, verdict.worst)
        if verdict.case.values == "normal":  # where sums cancel, NMSE says nothing
            nmse = max(nmse, verdict.nmse)
        if not verdict.passed:
            again = replay(kernel.name, verdict.case)
            failure = f"{verdict.failure} (again: {again})"
            break
    if not cases and not failure:
        failure = "no case was tried"
    return Certificate(
        kernel=kernel.name,
        key=Key.of(kernel).digest,
        level=level,
        cases=cases,
        worst=worst if np.isfinite(worst) else -1.0,
        nmse=nmse if np.isfinite(nmse) else -1.0,
        seconds=round(time.perf_counter() - started, 3),
        when=datetime.now(UTC).isoformat(timespec="seconds"),
        failure=failure,
        code=code_of(kernel),
    )


def quick(kernel: AnyKernel) -> Certificate:
    """Judge the kernel on its op's seeded cases, in this process."""
    started = time.perf_counter()
    candidate = Candidate.of(kernel)
    cases = [c for c in kernel.spec.quick_cases(kernel.format) if kernel.takes(c.shape)]
    return certificate_of(
        kernel, (judge(candidate, c, guarded=True) for c in cases), "quick", started
    )


def answer(tried: Callable[[AnyKernel], Certificate]) -> None:
    """Certificates on standard output, which is for them alone from here on: what libraries print
    goes to stderr."""
    with os.fdopen(os.dup(1), "w", buffering=1) as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            answers.write(json.dumps(asdict(tried(find_any(line.strip())))) + "\n")


def main() -> None:
    answer(quick)


if __name__ == "__main__":
    main()
