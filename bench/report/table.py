"""What a report is made of. The page and the Markdown file are written from the same tables."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

TOP = 12  # rows of a long table that are open to view


@dataclass(frozen=True, slots=True)
class Cell:
    """One place of a table.

    `value` is the exact figure behind the text, by which the page sorts; `note` is shown to who
    asks; `tone` is "good", "bad" or "quiet".
    """

    text: str
    value: float | None = None
    note: str = ""
    tone: str = ""


Row = tuple[Cell, ...]
Column = Callable[[Any], Cell]  # of a row, such as a frame's
NONE = Cell("—", tone="quiet")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows, the most interesting first: of a long table the first `top` are open to view.

    `words`: its figures stand among words, and need no column of their own.
    """

    anchor: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    top: int = TOP
    words: bool = False

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                wanted = len(self.columns)
                raise ValueError(f"{self.anchor}: row {i} has {len(row)} cells, not {wanted}")

    @property
    def folded(self) -> bool:
        """Whether most of it waits to be opened; a few rows more than `top` are shown as well."""
        return len(self.rows) > self.top + 3

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold figures."""
        columns = range(len(self.columns))
        return tuple(
            not self.words and any(row[i].value is not None for row in self.rows) for i in columns
        )

    def with_what_there_is(self) -> "Table":
        """Without the columns that no row has anything in."""
        kept = [i for i in range(len(self.columns)) if any(row[i] is not NONE for row in self.rows)]
        return replace(
            self,
            columns=tuple(self.columns[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
        )

    def on_threads(self) -> "Table":
        """Where all ran on as many threads, the caption says so and not every row."""
        i = self.columns.index("Threads")
        counts = {row[i].value for row in self.rows}
        if len(counts) != 1:
            return self
        (threads,) = counts
        return replace(
            self,
            caption=f"{self.caption}, on {plural(int(threads or 0), 'thread')}",
            columns=self.columns[:i] + self.columns[i + 1 :],
            rows=tuple(row[:i] + row[i + 1 :] for row in self.rows),
        )


@dataclass(frozen=True, slots=True)
class Plot:
    """One drawing as SVG, laid out for a desk and for a phone; `caption` says what is seen."""

    anchor: str
    caption: str
    wide: str
    narrow: str


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the report, which is left out where it has only its lead."""

    anchor: str
    title: str
    lead: str
    plots: tuple[Plot, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


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
    """`about` are the facts under the title; `warning` says why all of it may be doubtful."""

    title: str
    about: tuple[tuple[str, str], ...]
    warning: str
    figures: tuple[KeyFigure, ...]
    sections: tuple[Section, ...]


def table(
    anchor: str, caption: str, rows: Iterable[Any], columns: Mapping[str, Column], **options: Any
) -> Table:
    """A table of rows such as a frame's, each column made of a row."""
    cells = tuple(tuple(make(row) for make in columns.values()) for row in rows)
    return Table(anchor, caption, tuple(columns), cells, **options)


def digits(value: float, count: int = 3) -> str:
    """So many significant digits, with thousands set apart: 12.3, 1,234, 0.00123."""
    if not math.isfinite(value):
        return "—"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{count - 1}e}")  # first, for 9.996 has other digits than 10.0
    places = count - 1 - math.floor(math.log10(abs(rounded)))
    if abs(rounded) < 1e-4:
        return f"{value:.{count - 1}e}"
    return f"{rounded:,.{max(0, places)}f}"


def number(value: float, unit: str = "", note: str = "") -> Cell:
    """A figure in three digits, or a dash where there is none."""
    if not math.isfinite(value):
        return NONE
    return Cell(f"{digits(value)} {unit}".strip(), value, note)


def count(value: int, note: str = "") -> Cell:
    return Cell(f"{value:,}", value, note)


def text(words: str, tone: str = "", note: str = "") -> Cell:
    return Cell(words, None, note, tone) if words else NONE


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: 1.23 ms."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if float(f"{seconds:.2e}") >= size:
            return f"{digits(seconds / size)} {unit}"
    return f"{digits(seconds / 1e-9)} ns"


def time(seconds: float, note: str = "") -> Cell:
    """A duration whose value is in seconds."""
    return Cell(duration(seconds), seconds, note) if math.isfinite(seconds) else NONE


def percent(share: float, note: str = "") -> Cell:
    """A share whose value is a fraction."""
    if not math.isfinite(share):
        return NONE
    return Cell(f"{100 * share:.{0 if share >= 0.1 else 1}f}%", share, note)


def plural(number: int, noun: str) -> str:
    """1 kernel, 2 kernels."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(words: Sequence[str], most: int = 6) -> str:
    """a, b, c and 4 more."""
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"
