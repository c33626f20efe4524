"""What programs have in common that measure part by part, keep rows and write a page."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table as Printed

from bench.conditions import Conditions, conditions
from bench.report.table import Table
from bench.results import Measurement, Results, results_folder
from engine.shell.show import stderr, stdout

Tell = Callable[[str], None]  # is told what is done now


class Part(Protocol):
    def measurements(self) -> Iterable[Measurement]: ...


P = TypeVar("P", bound=Part)


@dataclass(frozen=True, slots=True)
class Face(Generic[P]):
    """How a part is shown: on the terminal under its title, with lines behind its table; for
    programs; and all parts as a page, with plots beside it."""

    title: Callable[[P], str]
    table: Callable[[P], Table]
    remarks: Callable[[P], Sequence[str]]
    as_dict: Callable[[P], dict[str, Any]]
    write: Callable[[Sequence[P], Conditions, Path], None]

    def show(self, part: P, console: Console) -> None:
        table = self.table(part)
        found = Printed(*table.columns, box=None)
        for column, numeric in zip(found.columns, table.numeric, strict=True):
            column.justify = "right" if numeric else "left"
        for row in table.rows:
            found.add_row(*(cell.text for cell in row))
        console.print(self.title(part), style="italic", highlight=False, soft_wrap=True)
        console.print(found)
        for line in self.remarks(part):
            console.print(line, highlight=False, soft_wrap=True)
        console.print()


def add_options(parser: ArgumentParser, seconds: float) -> None:
    """Where the page goes, threads, how long, and for whom."""
    parser.add_argument("-o", "--out", type=Path, help="a page in Markdown; plots go beside it")
    parser.add_argument(
        "-t", "--threads", type=int, default=0, help="0: one per core that it may use"
    )
    parser.add_argument(
        "-s", "--seconds", type=float, default=seconds,
        help=f"a race ends after these ({seconds:g}), once it has 5 samples",
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="few samples, to see that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def report(
    options: Namespace, face: Face[P], measured: Callable[[Tell], Generator[P, None, None]]
) -> int:
    """Measure, keep the rows of each part as soon as it is there (but of a quick run none), and
    show what was found; the exit code. What cannot be measured is one line on stderr."""
    about, found = conditions(), list[P]()
    results: Results | None = None
    try:
        if options.out and not options.out.parent.is_dir():
            raise FileNotFoundError(f"{options.out.parent}: no such folder")
        with Progress(console=stderr, transient=True) as bar:
            task = bar.add_task("", total=None)
            with closing(measured(lambda words: bar.update(task, description=words))) as parts:
                for part in parts:
                    found.append(part)
                    if not options.quick:
                        results = results or Results(results_folder(), about)
                        results.add(*part.measurements())
        if options.out:
            face.write(found, about, options.out)
    except (ValueError, OSError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps([face.as_dict(part) for part in found]))
        return 0
    for part in found:
        face.show(part, stdout())
    return 0
