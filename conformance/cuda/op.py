"""Run one case of an op on its CUDA kernels: `python -m conformance.cuda.op OP --shape tokens=1`.

They run on the GPU if there is one, otherwise on the emulator. Exit status 1 if one is wrong.
"""

import argparse
import sys
from contextlib import nullcontext

from rich.console import Console
from rich.table import Table

from conformance.cuda.emulator import Emulator
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime.current import current, taking_the_place
from kernels.cuda.runtime.device import DeviceError
from kernels.judge import judge


def gpu() -> bool:
    try:
        return bool(current().name)
    except DeviceError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("op", choices=sorted({kernel.op for kernel in EVERY_CUDA}), metavar="OP")
    parser.add_argument("--variant")
    parser.add_argument("--format")
    parser.add_argument("--shape", default="", help="sizes, e.g. tokens=1,hidden=2048")
    parser.add_argument("--values", default="normal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--secret", type=int, default=0)
    given = parser.parse_args()
    named = [k for k in EVERY_CUDA if k.op == given.op and given.format in (None, k.format)]
    if not named:
        parser.error(f"{given.op} has no CUDA kernel for {given.format}")
    op = named[0].spec
    words = [word.partition("=") for word in given.shape.split(",") if word]
    try:
        sizes = {axis: int(size) for axis, _, size in words}
        case = op.case(sizes, given.values, given.seed, named[0].format)
    except ValueError as error:
        parser.error(str(error))
    chosen = [
        kernel
        for kernel in named
        if kernel.format == case.format
        and given.variant in (None, kernel.variant)
        and kernel.takes(case.shape)
    ]
    table = Table("kernel", "device", "error / bound", "NMSE", "outcome")
    wrong = not chosen
    with nullcontext() if gpu() else taking_the_place(Emulator()):
        for kernel in chosen:
            verdict = judge(kernel, case, given.secret)
            outcome = verdict.failure or "right"
            figures = f"{verdict.worst:.3f}", f"{verdict.nmse:.1e}"
            table.add_row(kernel.name, current().name, *figures, outcome)
            wrong |= not verdict.passed
    Console().print(table if chosen else f"no CUDA kernel of {op.name} takes {dict(case.shape)}")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
