"""Notes, tables and progress bars, by rich; not imported by commands that show none."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Column, Table

from engine.progress import ProgressCallback

stderr = Console(stderr=True)
PIPE_WIDTH = 10_000  # columns where no terminal limits them: a table row is one line


def stdout() -> Console:
    """The console for tables: as wide as the terminal, and wide enough where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def note(text: str) -> None:
    """Print a note for the user on stderr."""
    stderr.print(f"note: {text}", style="yellow", highlight=False, markup=False, soft_wrap=True)


def silence() -> None:
    """No notes and no progress bars from here on: the user wants only the result."""
    stderr.quiet = True


def figures(*names: str) -> list[Column]:
    """Columns of a table that hold numbers."""
    return [Column(name, justify="right") for name in names]


def table(*columns: str | Column) -> Table:
    """An empty table: with lines on a terminal, columns two spaces apart otherwise."""
    if stdout().is_terminal:
        return Table(*columns, pad_edge=False)
    return Table(*columns, box=None, padding=(0, 2, 0, 0), pad_edge=False)


def print_table(columns: Iterable[str | Column], rows: Iterable[Iterable[object]]) -> None:
    """Print a table: integers with commas, None as nothing, text as it is."""
    shown = table(*columns)
    for row in rows:
        shown.add_row(*map(_cell, row))
    stdout().print(shown)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else escape(str(value))


def progress_bar() -> Progress:
    """A progress bar on stderr that vanishes when done; nothing where stderr is no terminal."""
    return _bar(TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())


def _bar(description: TextColumn, *columns: ProgressColumn) -> Progress:
    return Progress(
        description, BarColumn(), *columns,
        console=stderr, transient=True, disable=not stderr.is_terminal,
    )  # fmt: skip


@contextmanager
def bytes_bar(name: str) -> Iterator[ProgressCallback]:
    """A progress bar for a file being written: a callback with bytes done and in total."""
    shown = TextColumn("{task.description}", markup=False)
    with _bar(shown, DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
