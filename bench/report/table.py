"""What a report is made of. The page and the Markdown file are written from the same tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bench.report.cells import NONE, Cell, Column, field
from bench.report.words import plural

TOP = 12  # rows of a long table that are open to view


@dataclass(frozen=True, slots=True)
class Table:
    """A frame of cells, the most interesting rows first: of a long table the first `top` are open
    to view, and all if that is 0.

    `words`: its figures stand among words, and need no column of their own.
    """

    anchor: str
    caption: str
    cells: pd.DataFrame
    top: int = TOP
    words: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.cells.columns)

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return list(self.cells.itertuples(index=False, name=None))

    @property
    def folded(self) -> bool:
        """Whether most of it waits to be opened; a few rows more than `top` are shown as well."""
        return bool(self.top) and len(self.cells) > self.top + 3

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold figures."""
        figures = self.cells.map(lambda cell: cell.value is not None and not self.words)
        return tuple(figures.any())

    def with_what_there_is(self) -> "Table":
        """Without the columns that no row has anything in."""
        return replace(self, cells=self.cells.loc[:, (self.cells != NONE).any()])

    def on_threads(self) -> "Table":
        """Where all ran on as many threads, the caption says so and not every row."""
        counts = {cell.value for cell in self.cells["Threads"]}
        if len(counts) != 1:
            return self
        caption = f"{self.caption}, on {plural(int(counts.pop() or 0), 'thread')}"
        return replace(self, caption=caption, cells=self.cells.drop(columns="Threads"))


@dataclass(frozen=True, slots=True)
class Plot:
    """One drawing as SVG, laid out for a desk and for a phone; `caption` says what is seen."""

    anchor: str
    caption: str
    wide: str
    narrow: str


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the report, which is left out where it has only its lead; so are tables that
    have no rows."""

    anchor: str
    title: str
    lead: str
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        shown = tuple(table for table in self.tables if len(table.cells))
        object.__setattr__(self, "tables", shown)


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A figure worth its place at the top: what it is of, the figure, what it is set against."""

    label: str
    text: str
    value: float
    unit: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """`about` are the facts under the title; `warning` says why all of it may be doubtful;
    `command` wrote it, of a `run` whose samples are kept."""

    title: str
    about: Sequence[tuple[str, str]]
    warning: str
    figures: Sequence[KeyFigure]
    sections: Sequence[Section]
    command: str = "assay report"
    run: bool = True


def table(
    anchor: str, caption: str, rows: Iterable[Any], columns: Mapping[str, Column], **options: Any
) -> Table:
    """A table of rows such as a frame's, each column made of a row."""
    makers = [field(make) if isinstance(make, str) else make for make in columns.values()]
    cells = pd.DataFrame([[make(row) for make in makers] for row in rows], columns=list(columns))
    return Table(anchor, caption, cells.astype(object), **options)
