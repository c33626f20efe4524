"""The common frame of programs that measure race by race, store rows and write a page."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from rich.progress import Progress
from rich.table import Table as Printed

from bench.machine.conditions import conditions
from bench.race.experiment import Rule
from bench.race.results import Measurement, Results, Run, results_folder
from bench.report.lookup import rows_of
from bench.report.page import write_page
from bench.report.table import Section, Table
from engine.shell.terminal import stderr, stdout
from kernels.cpu.runtime.cores import physical_cores

Tell = Callable[[str], None]  # receives what is being done


def parsed(parser: ArgumentParser, full: Rule, quick: Rule) -> Namespace:
    """The options of a racing program: the common ones, and the `rule` by which races end."""
    parser.add_argument(
        "-s", "--seconds", type=float, default=full.cap_seconds,
        help=f"a race ends after these ({full.cap_seconds:g}), once it has 5 samples",
    )  # fmt: skip
    options = common(parser)
    options.rule = quick if options.quick else replace(full, cap_seconds=options.seconds)
    return options


def common(parser: ArgumentParser) -> Namespace:
    """The options common to all: the page's path, threads (by default one per available core),
    output format."""
    parser.add_argument("-o", "--out", type=Path, help="a page in Markdown; plots go beside it")
    parser.add_argument(
        "-t", "--threads", type=int, default=0, help="0: one per core that it may use"
    )
    parser.add_argument("--quick", action="store_true", help="few samples, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    options = parser.parse_args()
    options.threads = options.threads or physical_cores()
    return options


def report(
    options: Namespace,
    section: Callable[[pd.DataFrame], Section],
    measured: Callable[[Tell], Generator[Iterable[Measurement], None, None]],
) -> int:
    """Measure, store the rows of each race as soon as they exist (not of a quick run), and show the
    section made of them; returns the exit code. What cannot be measured is one line on stderr."""
    about, found = conditions(), list[Measurement]()
    results: Results | None = None
    try:
        if options.out and not options.out.parent.is_dir():
            raise FileNotFoundError(f"{options.out.parent}: no such folder")
        with Progress(console=stderr, transient=True) as bar:
            task = bar.add_task("", total=None)
            with closing(measured(lambda words: bar.update(task, description=words))) as races:
                for rows in races:
                    found += rows
                    if not options.quick:
                        results = results or Results(results_folder(), about)
                        results.add(*rows)
        made = section(rows_of([Run("", "", about, {}, tuple(found))]))
        if options.out:
            write_page(made, about, options.out)
    except (ValueError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([as_dict(table) for table in made.tables]))
        return 0
    show(made)
    for row in found:
        if row.impossible:
            stdout().print(f"rejected: {row.title}: {row.impossible}", highlight=False)
    return 0


def as_dict(table: Table) -> dict[str, Any]:
    """A table for programs: exact figures where there are some, else the text; null for none."""
    rows = [
        {
            name: cell.text if cell.value is None and cell.text != "—" else cell.value
            for name, cell in zip(table.columns, row, strict=True)
        }
        for row in table.rows
    ]
    return {"table": table.caption, "rows": rows}


def show(section: Section) -> None:
    """Print each table under its title, then the notes."""
    console = stdout()
    for table in section.tables:
        printed = Printed(*table.columns, box=None)
        for column, numeric in zip(printed.columns, table.numeric, strict=True):
            column.justify = "right" if numeric else "left"
        for row in table.rows:
            printed.add_row(*(cell.text for cell in row))
        console.print(table.caption, style="italic", highlight=False, soft_wrap=True)
        console.print(printed)
        console.print()
    for note in section.notes:
        console.print(note, highlight=False, soft_wrap=True)
