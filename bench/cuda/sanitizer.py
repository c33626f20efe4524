"""compute-sanitizer on some kernels of every source, where the program is.

Run as a program (`python -m bench.cuda.sanitizer`) it is what the sanitizer watches: a few small
cases before the judge.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernels.cuda.kernel import CudaKernel
from kernels.cuda.table import CUDA_KERNELS
from kernels.judge import Candidate, judge
from reference.op import Case

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FAULT = 86  # its exit status where it found one
CASES = 2  # of a kernel
SAID = 6  # lines of what it says
MODULE = "bench.cuda.sanitizer"
TOOLKITS = Path("/usr/local")


def program() -> str | None:
    """Where it is."""
    if found := shutil.which("compute-sanitizer"):
        return found
    toolkits = sorted(TOOLKITS.glob("cuda*/bin/compute-sanitizer"), reverse=True)
    return str(toolkits[0]) if toolkits else None


def sample() -> Iterator[tuple[CudaKernel, Case]]:
    """The first kernel of every source, on the cheapest of its quick cases that do anything."""
    sources: set[str] = set()
    for kernel in CUDA_KERNELS:
        own = {launch.source for launch in kernel.launches}
        if own <= sources:
            continue
        sources |= own
        op = kernel.spec
        taken = [c for c in op.quick_cases(kernel.format) if kernel.takes(c.shape)]
        busy = [case for case in taken if all(case.shape.values())]
        cheap = sorted(busy or taken, key=lambda case: op.cost(case.shape, case.format).bytes)
        yield from ((kernel, case) for case in cheap[:CASES])


@dataclass(frozen=True, slots=True)
class Finding:
    """What a tool says, and whether it is of a fault."""

    words: str
    fault: bool = False


def watched(path: str, tool: str, seconds: float) -> Finding:
    """What a tool says of the sample, in so many seconds."""
    command = [path, "--tool", tool, "--error-exitcode", str(FAULT), sys.executable, "-m", MODULE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Finding(f"not done within {seconds:.0f} s")
    if not done.returncode:
        return Finding("nothing found")
    said = [line.strip("= ") for line in (done.stdout + done.stderr).splitlines()]
    words = " | ".join([line for line in said if line][:SAID])
    return Finding(f"status {done.returncode}: {words}", fault=True)


def main() -> int:
    import cupy

    cupy.cuda.set_allocator(None)  # each array by itself, so that its ends are seen
    failures = 0
    for kernel, case in sample():
        if failure := judge(Candidate.of(kernel), case).failure:
            print(f"{kernel.name} {case.describe()}: {failure}")
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
