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

from bench.child import started
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.product import Product
from kernels.judge import judge
from reference.op import Case

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# CuPy asks for things that a GPU may not have, and is told so: no fault of a kernel's.
OPTIONS = {"memcheck": ("--report-api-errors", "no")}
FAULT = 86  # its exit status where it found one
REFUSED = "Device not supported"  # says one that cannot work here, whatever it watches
SAID = 6  # lines of what it says, before the last one of what it watches
MODULE = "bench.cuda.sanitizer"
TOOLKITS = Path("/usr/local")


def program() -> str | None:
    """Where it is."""
    if found := shutil.which("compute-sanitizer"):
        return found
    toolkits = sorted(TOOLKITS.glob("cuda*/bin/compute-sanitizer"), reverse=True)
    return str(toolkits[0]) if toolkits else None


def sample() -> Iterator[tuple[CudaKernel, Case]]:
    """The first kernel of every source, on the cheapest quick case that each of its functions has
    anything to do in; none that cuBLAS multiplies in, whose ways are not ours to be told of."""
    sources: set[str] = set()
    for kernel in EVERY_CUDA:
        own = {launch.source for launch in kernel.launches}
        if own <= sources:
            continue
        sources |= own
        op = kernel.spec
        products = [stage for stage in kernel.stages if isinstance(stage, Product)]
        taken = [
            case
            for case in op.quick_cases(kernel.format)
            if kernel.takes(case.shape) and not any(p.when(case.shape) for p in products)
        ]
        cheap = sorted(taken, key=lambda case: op.cost(case.shape, case.format).bytes)
        chosen: list[Case] = []
        for launch in kernel.launches:
            busy = [case for case in cheap if not launch.at(case.shape).empty]
            chosen += [case for case in busy[:1] if case not in chosen]
        yield from ((kernel, case) for case in chosen)


@dataclass(frozen=True, slots=True)
class Finding:
    """What a tool says, and whether it is of a fault, or that it could not look."""

    words: str
    fault: bool = False
    missed: bool = False


def watched(path: str, tool: str, seconds: float) -> Finding:
    """What a tool says of the sample, in so many seconds."""
    command = [path, "--tool", tool, *OPTIONS.get(tool, ()), "--error-exitcode", str(FAULT)]
    command += [sys.executable, "-m", MODULE]
    try:
        with started(command) as process:
            said = "".join(process.communicate(timeout=seconds))
    except subprocess.TimeoutExpired:
        return Finding(f"not done within {seconds:.0f} s", missed=True)
    if not process.returncode:
        return Finding("nothing found")
    lines = [line for line in said.splitlines() if line.strip("= ")]
    own = [line.strip("= ") for line in lines if line.startswith("=")]
    words = " | ".join(own[:SAID] + [line for line in lines if not line.startswith("=")][-1:])
    refused = REFUSED in said
    return Finding(f"status {process.returncode}: {words}", fault=not refused, missed=refused)


def main() -> int:
    import cupy

    cupy.cuda.set_allocator(None)  # each array by itself, so that its ends are seen
    failures = 0
    for kernel, case in sample():
        if failure := judge(kernel, case).failure:
            print(f"{kernel.name} {case.describe()}: {failure}")
            failures += 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
