"""assay op: one op alone, at any shape: is it right, how fast is it, how fast could it be?"""

import json
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.shell.display import grid, rate, share, still_bar, teller
from engine.shell.command_line import options as o
from engine.shell.command_line.command import as_usage
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from rich.table import Table

    from bench.ops.single_op import SingleOp
    from bench.race.results import Measurement
    from kernels.kernel import Kernel
    from reference.op import Case

HOT_FIRST = ("hot", "cold")


def op(
    name: Annotated[str, typer.Argument(metavar="OP", help="An op of `assay ops`.")],
    format: str | None = option(None, "Weight format, e.g. Q4_0."),
    shape: str = option("", "Sizes, e.g. tokens=1,hidden=2048,out=5632."),
    variant: str | None = option(None, "One variant only."),
    every: bool = option(
        False, "All variants, packages' included, not only those used here.", "--all"
    ),
    values: str = option("normal", "Kind of values: normal, spiky, …"),
    seed: int = option(0, "The same seed gives the same inputs."),
    secret: int = option(0, "Secret of a trial: fills memory around arrays."),
    machine_code: bool = option(
        False, "Show its CUDA kernels' machine code instead; needs no GPU."
    ),
    sm: int = option(90, "Machine code for GPUs of this compute capability."),
    threads: o.Threads = 0,
    as_json: o.Json = False,
) -> None:
    """Run one op alone: its error, time and share of the limit.

    The error is relative to its bound, times are on hot and on cold caches with variants in turns,
    and the share is of the best that this machine's memory and arithmetic allow.
    """
    from bench.machine.conditions import conditions
    from bench.ops.single_op import compile_all, single_op
    from engine.shell.terminal import stderr, stdout
    from kernels.cpu.runtime.cores import physical_cores
    from kernels.cpu.runtime.team import Team
    from kernels.table import ANY, variants
    from reference.table import OPS, find_op

    with as_usage():
        spec = find_op(name)
    if format and not spec.formats:
        raise typer.BadParameter(f"{name} takes no format, got {format}")
    if machine_code:
        from bench.shell.machine_code import show

        show(name, format, variant, sm, as_json)
        return
    for asked, number in (("--seed", seed), ("--secret", secret)):
        if number < 0:
            raise typer.BadParameter(f"{asked} must not be negative, got {number}")
    chosen = format or (spec.formats[0] if spec.formats else None)
    with as_usage():
        case = spec.case(parse_shape(shape), values, seed, chosen)
    wanted = variant or (ANY if every or name not in OPS else None)
    found = variants(name, case.format, wanted)
    kernels = [k for k in found if variant in (None, k.variant)]
    usable = [k for k in kernels if not k.missing() and k.takes(case.shape)]
    if not usable:
        kind = typer.BadParameter if variant and not kernels else ValueError
        raise kind(f"no kernel of {name} serves here: {_why(kernels, variant)}")
    if not every:
        usable = serving(usable)
    busy = conditions().busy
    with still_bar() as bar:
        tell = partial(teller, bar)
        compile_all(usable, tell)
        with Team(count := threads or physical_cores()) as team:
            rows = single_op(usable, case, team, tell, secret)
    if as_json:
        print(json.dumps([to_json(row, count) for row in rows]))
    else:
        console = stdout()
        console.print(title(case, name, count), highlight=False, soft_wrap=True)
        console.print(table(rows))
        for line in notes(rows) + [busy] * bool(busy):
            console.print(line, highlight=False)
    if wrong := [row for row in rows if not row.verdict.passed]:
        line = f"assay: {wrong[0].kernel.name}: {wrong[0].verdict.failure}"
        stderr.print(line, highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(1)


def serving(kernels: "Sequence[Kernel]") -> "list[Kernel]":
    """The op's kernels, best first, that an engine would use: the first in either numerics."""
    first = {kernel.numerics: kernel for kernel in reversed(kernels)}
    return [kernel for kernel in kernels if first[kernel.numerics] is kernel]


def parse_shape(text: str) -> dict[str, int]:
    """`tokens=1,hidden=2048` as sizes by axis."""
    sizes = {}
    for word in filter(None, text.split(",")):
        axis, equals, size = word.partition("=")
        if not equals or not (size.isascii() and size.isdigit()) or len(size) > 12:
            raise typer.BadParameter(f"--shape wants axis=size,…; got {word!r}")
        sizes[axis.strip()] = int(size)
        if int(size) > 2**31:
            raise typer.BadParameter(f"--shape: {word} is too large")
    return sizes


def _why(kernels: "Sequence[Kernel]", variant: str | None) -> str:
    if not kernels:
        return f"no variant {variant!r}" if variant else "none is written"
    lacking = [f"{k.variant} needs {', '.join(k.missing())}" for k in kernels if k.missing()]
    return "; ".join(lacking) or "none takes this shape"


def to_json(row: "SingleOp", threads: int) -> dict[str, Any]:
    """Seconds are medians; what was not measured or has no limit is null."""
    case = row.verdict.case
    found: dict[str, Any] = {
        "kernel": row.kernel.name,
        "shape": dict(case.shape),
        "values": case.values,
        "seed": case.seed,
        "threads": threads,
        "passed": row.verdict.passed,
        "error_over_bound": row.verdict.worst,
        "nmse": row.verdict.nmse,
    }
    for cache in HOT_FIRST if row.times else ():
        prefix = "cold_" if cache == "cold" else ""
        figures = _figures(row.times[cache])
        found |= {prefix + name: value for name, value in figures.items()}
    return found


def _figures(time: "Measurement") -> dict[str, Any]:
    known = bool(time.samples)
    return {
        "seconds": time.median if known else None,
        "samples": len(time.samples),
        "gb_per_second": time.gb_per_second if known else None,
        "gflop_per_second": time.gflop_per_second if known else None,
        "limit": time.limit or None,
        "share": time.share or None,
        "note": time.note,
    }


def title(case: "Case", name: str, threads: int) -> str:
    from bench.report.words import plural

    sizes = ",".join(f"{axis}={size}" for axis, size in case.shape.items())
    op_name = " ".join(filter(None, (name, case.format)))
    counted = plural(threads, "thread")
    return f"{op_name} {sizes}: {case.values} values, seed {case.seed}, {counted}"


def table(rows: "Sequence[SingleOp]") -> "Table":
    """Two lines for each variant: on hot and on cold caches."""
    from engine.shell.terminal import figures

    errors, speeds = figures("error/bound", "NMSE"), figures("us", "GB/s", "GFLOP/s")
    found = grid("variant", *errors, "cache", *speeds, "of the limit")
    for row in rows:
        verdict = row.verdict
        first = [row.kernel.variant, f"{verdict.worst:.3f}", f"{verdict.nmse:.1e}"]
        if not verdict.passed:
            found.add_row(*first, "[bold red]FAILED")
        for cache in HOT_FIRST if row.times else ():
            time = row.times[cache]
            told = _figures(time)
            rates = (rate(told[name] or 0) for name in ("gb_per_second", "gflop_per_second"))
            microseconds = f"{1e6 * time.median:,.1f}" if time.samples else ""
            found.add_row(*first, cache, microseconds, *rates, share(time))
            first = ["", "", ""]
    return found


def notes(rows: "Sequence[SingleOp]") -> list[str]:
    """Why times are absent, or not to be believed."""
    return [
        f"{'!' if time.samples else 'not timed:'} {row.kernel.variant}, {cache}: {time.note}"
        for row in rows
        for cache, time in row.times.items()
        if time.note
    ]
