"""assay compare: is B slower than A?"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.shell.display import names, numbers, teller
from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from rich.table import Table

    from bench.compare import Comparison
    from bench.ops.cases import BenchCase
    from bench.trees import Side

VERDICTS = {"slower": "bold red", "faster": "green", "same": "dim"}


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A stored run, a commit or a variant.")],
    b: Annotated[
        str, typer.Argument(metavar="B", help="The same kind; `.` is the working tree.")
    ] = ".",
    op: str | None = option(None, "Kernels of this op only."),
    format: str | None = option(None, "Kernels of this format only."),
    models: str = option("story", "Models whose shapes are used, comma-separated."),
    tokens: str = option("1,512", "Tokens per call, comma-separated."),
    cache: str = option("hot", "hot, cold or hot,cold."),
    everything: bool = option(False, "Also measure kernels with the same sources.", "--all"),
    again: str | None = option(None, "A second run of A: its difference from A is noise."),
    results: Path | None = option(None, "The folder of stored runs."),
    threads: o.Threads = 0,
    as_json: o.Json = False,
) -> None:
    """Compare commits, variants or runs; exit 1 if B is slower.

    Commits and variants run in turns, A twice, so that noise shows. A difference counts if its
    interval excludes 1, it is larger than the noise, and it is there again when measured anew.
    """
    from bench.compare import measured, stored
    from bench.race.results import ResultsError, find, is_stored, results_folder
    from bench.trees import side
    from engine.shell.terminal import progress_bar, stdout
    from kernels.cpu.runtime.cores import physical_cores
    from kernels.cpu.runtime.team import MOST_THREADS

    if not 0 <= threads <= MOST_THREADS:
        raise typer.BadParameter(f"--threads is 0 to {MOST_THREADS}, got {threads}")
    folder = results or results_folder()
    kept = [is_stored(name, folder) for name in (a, b)]
    if all(kept):
        first, second = find(a, folder), find(b, folder)
        comparison = stored(first, second, find(again, folder) if again else None)
    elif any(kept):
        known, other = (a, b) if kept[0] else (b, a)
        raise ResultsError(f"{known} is a stored run and {other} is none: compare two of a kind")
    else:
        with ExitStack() as stack:
            first_side, second_side = (stack.enter_context(side(name)) for name in (a, b))
            counts = numbers(tokens, "--tokens", least=1)
            cases = _cases(first_side, op, format, names(models), counts, names(cache))
            with progress_bar() as bar:
                tell, count = teller(bar, "measuring in turns"), threads or physical_cores()
                tell(0, len(cases))  # while processes start
                comparison = measured(first_side, second_side, cases, count, everything, tell)
    if as_json:
        print(json.dumps(comparison.to_json()))
    else:
        console = stdout()
        if comparison.rows:
            console.print(table(comparison))
        for line in remarks(comparison):
            console.print(line, highlight=False, soft_wrap=True)
    if comparison.slower:
        raise typer.Exit(1)


def _cases(
    a: "Side",
    op: str | None,
    format: str | None,
    models: tuple[str, ...],
    tokens: tuple[int, ...],
    caches: tuple[str, ...],
) -> "list[tuple[BenchCase, str]]":
    """What to measure, by the kernels of side A."""
    from bench.ops.cases import CACHES, cases
    from data import shapes
    from kernels.table import KERNELS
    from reference.table import OPS

    if op is not None and op not in OPS:
        raise typer.BadParameter(f"there is no op {op!r}: {', '.join(OPS)}")
    if bad := [cache for cache in caches if cache not in CACHES]:
        raise typer.BadParameter(f"--cache is {' or '.join(CACHES)}, got {bad[0]!r}")
    kernels = [
        kernel
        for kernel in KERNELS
        if op in (None, kernel.op)
        and format in (None, kernel.format)
        and a.variant in ("", kernel.variant)
        and not kernel.missing()
    ]
    if not kernels:
        raise ValueError(f"no such kernel runs here: op {op or 'any'}, format {format or 'any'}")
    known = shapes.read()
    found = cases(shapes.Shapes(known.models, ()), models, tokens, kernels)
    return [(case, cache) for case in found for cache in caches]


def table(comparison: "Comparison") -> "Table":
    """For people: times, ratio with its interval, and what noise makes."""
    from engine.shell import terminal

    numbers = terminal.figures("A (us)", "B (us)", "B / A", "interval", "noise")
    found = terminal.table("case", *numbers, "B is")
    for row in comparison.rows:
        found.add_row(
            row.title,
            f"{1e6 * row.a:,.1f}",
            f"{1e6 * row.b:,.1f}",
            f"{row.ratio.value:.3f}",
            f"{row.ratio.low:.3f} to {row.ratio.high:.3f}",
            f"{row.floor:.3f}",
            f"[{VERDICTS[row.verdict]}]{row.verdict}",
        )
    return found


def remarks(comparison: "Comparison") -> list[str]:
    """What the table does not say."""
    lines = [f"A is {comparison.a}, B is {comparison.b}"]
    if comparison.same_code:
        lines.append(
            f"not measured, their sources being the same in both: {comparison.same_code} kernels"
            " (--all measures them)"
        )
    if comparison.unmatched:
        count = len(comparison.unmatched)
        lines.append(f"only in one of them: {count}, such as {comparison.unmatched[0]}")
    if not comparison.interleaved:
        lines.append("not in turns: what changed on the machine between the runs counts as well")
    counts = {word: sum(row.verdict == word for row in comparison.rows) for word in VERDICTS}
    lines.append(", ".join(f"{count} {word}" for word, count in counts.items()))
    return lines
