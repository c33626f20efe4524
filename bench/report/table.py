"""The parts of a report. The page and the Markdown file are written from the same tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bench.report.cells import NONE, Cell, Column, field
from bench.report.words import plural

TOP = 12  # rows of a long table that are shown at first


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
        """Whether most of it is collapsed; if only a few rows exceed `top`, all are shown."""
        return bool(self.top) and len(self.cells) > self.top + 3

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold figures."""
        figures = self.cells.map(lambda cell: cell.value is not None and not self.words)
        return tuple(figures.any())

    def with_what_there_is(self) -> "Table":
        """Without empty columns."""
        return replace(self, cells=self.cells.loc[:, (self.cells != NONE).any()])

    def on_threads(self) -> "Table":
        """Where all ran on as many threads, the caption tells it instead of every row."""
        counts = {cell.value for cell in self.cells["Threads"]}
        if len(counts) != 1:
            return self
        caption = f"{self.caption}, on {plural(int(counts.pop() or 0), 'thread')}"
        return replace(self, caption=caption, cells=self.cells.drop(columns="Threads"))


@dataclass(frozen=True, slots=True)
class Plot:
    """One drawing as SVG, laid out for a desktop and for a phone; `caption` describes it."""

    anchor: str
    caption: str
    wide: str
    narrow: str


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report, omitted where it has only its lead; so are tables without rows."""

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
    """A key figure at the top: its subject, the figure, its reference."""

    label: str
    text: str
    value: float
    unit: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """`about` are the facts under the title; `warning` tells why all of it may be doubtful;
    `command` wrote it, of a `run` whose samples are stored."""

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
    """A table of rows such as a frame's, each column computed from a row."""
    makers = [field(make) if isinstance(make, str) else make for make in columns.values()]
    cells = pd.DataFrame([[make(row) for make in makers] for row in rows], columns=list(columns))
    return Table(anchor, caption, cells.astype(object), **options)
