"""assay board: the solutions of a folder, judged, raced and ranked."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.shell.display import teller
from bench.shell.op import parse_shape
from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from bench.board.rows import Row


def board(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="OP/FILE, or files whose manifest names the op."),
    ],
    op: str = option("", "These ops only, e.g. linear,attention."),
    shape: str = option("", "Sizes, e.g. tokens=1,hidden=2048; by default TinyLlama's."),
    level: str = option("full", "quick, full (laws, too) or deep."),
    threads: o.Threads = 1,
    seconds: float = option(6.0, "Time limit of each race; 0: judge only."),
    own: bool = option(False, "Include our own kernels.", "--ours"),
    beside: list[Path] | None = option(None, "Add the --json output of another machine.", "--with"),
    html: Path | None = option(None, "Write the page to this file."),
    markdown: Path | None = option(
        None, "Write a summary of the laws to this file, with a plot beside it."
    ),
    as_json: o.Json = False,
) -> None:
    """Rank third-party kernels by op, shape and machine.

    Each is judged as by `assay judge`; correct ones are timed in turns. A difference within the
    noise is a tie. Exit 1 if none is correct.
    """
    from bench.board.page import report, summary
    from bench.board.rows import sorted_rows
    from bench.board.run import STARTS, solutions
    from bench.board.run import board as ranked
    from bench.machine.conditions import conditions
    from bench.machine.limits import Limits, limits
    from bench.race.experiment import Rule
    from bench.race.program import show
    from bench.report.page import page, write_page
    from engine.shell.terminal import note, progress_bar, stdout
    from kernels.cpu.runtime.cores import physical_cores
    from kernels.foreign.judge import LEVELS

    if level not in LEVELS:
        raise typer.BadParameter(f"--level is one of {', '.join(LEVELS)}, got {level!r}")
    if not seconds >= 0:
        raise typer.BadParameter(f"--seconds is not negative, got {seconds:g}")
    sizes, elsewhere = parse_shape(shape), [row for path in beside or () for row in _read(path)]
    found, complaints = [], []
    for one in solutions(folder):
        if isinstance(one, str):
            complaints.append(one)
        elif not op or one[1] in op.split(","):
            found.append(one)
    for complaint in complaints:
        note(complaint)
    if not found:
        raise ValueError(f"{folder} has no solution{f' of {op}' if op else ''} that can be judged")
    count = threads or physical_cores()
    rule = Rule(least=7, error=0.01, cap_seconds=seconds / STARTS, most=100) if seconds else None
    with progress_bar() as bar:
        tell = partial(teller, bar)
        probing = tell("probing the machine (once)")
        here = limits((count,), probing) if rule else Limits.unprobed()
        said: dict[str, int] = {}
        rows = ranked(
            found, folder, here, count, sizes, level, rule,  # type: ignore[arg-type]
            tell=lambda words: tell(words)(said.setdefault(words, 0)), own=own,
        )  # fmt: skip
    rows = sorted_rows([*rows, *elsewhere])
    if as_json:
        print(json.dumps([row.json() for row in rows]))
    else:
        for section in report(rows).sections:
            stdout().print(section.title, style="bold", highlight=False, markup=False)
            show(section)
    if html:
        html.write_text(page(report(rows, complaints)), encoding="utf-8")
    if markdown:
        about = conditions() if rule else replace(conditions(), load=0.0)  # which no law minds
        write_page(summary(rows), about, markdown)
    for written in filter(None, (html, markdown)):
        if not as_json:
            stdout().print(f"wrote {written}", highlight=False, markup=False)
    if not any(row.rank or row.verdict == "passed" for row in rows):
        raise typer.Exit(1)


def _read(path: Path) -> "list[Row]":
    from bench.board.rows import BoardError, Row

    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return [Row.of(row) for row in (said if isinstance(said, list) else [said])]
    except (BoardError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
