"""Where linear's tiles cross over: the time of a token by how many come together and by how many of
them a kernel keeps in registers at once.

`python -m bench.crossover Q4_0 F16` prints a table for each format, of this machine's fastest exact
kernel; its blocking is to be what wins here (docs/decisions/010-register-tiles.md).
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pandas as pd
from rich.progress import Progress

from bench.machine.limits import limits
from bench.ops.cases import BenchCase
from bench.ops.op_run import Lab, OpRun
from bench.ops.workload import Workload
from bench.race.experiment import Experiment
from bench.race.timing import Rule
from kernels.cpu.linear import linear_blocks, linear_float, linear_int8
from kernels.cpu.linear.linear import Blocking
from kernels.cpu.runtime.cores import physical_cores
from kernels.cpu.runtime.share import Share
from kernels.cpu.runtime.team import Team
from kernels.kernel import Kernel
from kernels.table import variants

TOKENS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64)
SHAPE = {"hidden": 2048, "out": 5632}  # TinyLlama's gate
RULE = Rule(least=5, most=15, error=0.01, cap_seconds=0.5)
MEETINGS = {
    "generic": linear_int8.GENERIC,
    "avx2": linear_int8.AVX2,
    "avx512_vnni": linear_int8.AVX512_VNNI,
}
BLOCKINGS = {"generic": linear_float.GENERIC, "avx512": linear_float.AVX512}


def widths(format: str) -> dict[int, Kernel]:
    """The fastest exact kernel that runs here and has tiles of vectors, with tiles of so many
    tokens at most, by that number."""
    for kernel in variants("linear", format):
        blocking = _blocking(kernel)
        if blocking and not kernel.missing() and kernel.numerics == "exact":
            found = {}
            for i, width in reversed([*enumerate(blocking.tiles)]):
                share = _share(kernel, replace(blocking, tiles=blocking.tiles[i:]))
                found[width] = replace(kernel, variant=f"of {width}", share=share)
            return found
    raise ValueError(f"no kernel of linear in {format} has tiles here")


def _blocking(kernel: Kernel) -> Blocking | None:
    if kernel.activations == "int8" and kernel.variant in MEETINGS:
        return MEETINGS[kernel.variant].blocking
    return BLOCKINGS.get(kernel.variant) if kernel.activations == "float32" else None


def _share(kernel: Kernel, blocking: Blocking) -> Share:
    """What the kernel runs, with another blocking."""
    name, stored = f"tiles of {blocking.tiles[0]}", str(kernel.format)
    if kernel.activations == "int8":
        meeting = replace(MEETINGS[kernel.variant], blocking=blocking)
        made = partial(linear_blocks.int8_kernel, meeting, name, stored)
        return Share(made, linear_blocks.SIGNATURE, stored)
    made = partial(linear_float.float_kernel, blocking, name, linear_float.KINDS[stored])
    return Share(made, linear_float.SIGNATURE, stored)


def crossover(format: str, lab: Lab, tell: Callable[[], None]) -> pd.DataFrame:
    """Seconds a token, by tokens and by the widest tile, from weights beyond the caches."""
    kernels, found = widths(format), {}
    for tokens in TOKENS:
        runs = {}
        for width, kernel in kernels.items():
            if width <= tokens:
                work = Workload.of(BenchCase(kernel, {"tokens": tokens, **SHAPE}, ()))
                runs[str(width)] = OpRun(lab, work, "cold").contender()
        rows = Experiment(runs).run(RULE)
        found[tokens] = {int(w): row.median / tokens for w, row in zip(runs, rows, strict=True)}
        tell()
    return pd.DataFrame.from_dict(found, orient="index").sort_index(axis=1)


def table(format: str, found: pd.DataFrame) -> str:
    """In microseconds a token, and which tiles are the fastest of a row."""
    told = (1e6 * found).add_prefix("tiles of ").rename_axis("tokens")
    told["fastest"] = found.idxmin(axis=1)
    return f"linear {format}, us a token\n{told.to_string(float_format='%.1f', na_rep='')}"


def main() -> None:
    formats = sys.argv[1:] or ["F16", "Q8_0", "Q4_0"]
    threads = physical_cores()
    with Team(threads) as team, Progress(transient=True) as bar:
        lab = Lab(team, limits([threads]))
        task = bar.add_task("racing tiles", total=len(formats) * len(TOKENS))
        tables = [table(f, crossover(f, lab, lambda: bar.advance(task))) for f in formats]
    for one in tables:
        print(one)


if __name__ == "__main__":
    main()
