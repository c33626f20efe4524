"""Options that take several values, and display of measurements: progress while they run, tables
and formats after."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Column, Table

    from bench.race.results import Measurement

REDRAW_SECONDS = 0.25
WIDE = 100  # columns of a terminal from which there is room for wider spacing


def names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (word.strip() for word in text.split(","))))


def numbers(text: str, option: str, least: int = 0) -> tuple[int, ...]:
    """`1,8,512` as integers."""
    found = []
    for word in names(text):
        if not (word.isascii() and word.isdigit()) or not least <= int(word) < 2**31:
            raise typer.BadParameter(f"{option} wants numbers of at least {least}; got {word!r}")
        found.append(int(word))
    return tuple(found)


def demand_exchange(who: str) -> None:
    """RuntimeError where a package is missing that reads flashinfer-bench's files."""
    from bench.packages import lacking

    if missing := lacking(["torch", "flashinfer_bench"]):
        raise RuntimeError(f"{who} needs {missing[0]}: pip install 'assay[exchange]'")


def still_bar() -> "Progress":
    """A progress bar without a refresh thread, which would take a core from the measurement."""
    from engine.shell.terminal import progress_bar

    bar = progress_bar()
    bar.live.auto_refresh = False
    return bar


def grid(*columns: "str | Column") -> "Table":
    """An empty table without lines: long words wrap, figures do not."""
    from rich.table import Table

    from engine.shell.terminal import stdout

    gap = 2 if stdout().width >= WIDE else 1
    found = Table(*columns, box=None, padding=(0, gap, 0, 0), pad_edge=False)
    for column in found.columns:
        column.overflow, column.no_wrap = "fold", column.justify == "right"
    return found


def teller(bar: "Progress", description: str) -> Callable[..., None]:
    """A progress callback that updates a still bar now and then."""
    task = bar.add_task(description, visible=False, total=None)
    shown = 0.0

    def tell(done: int, total: int | None = None) -> None:
        nonlocal shown
        due = time.monotonic() > shown + REDRAW_SECONDS
        bar.update(task, visible=True, completed=done, total=total, refresh=due)
        if due:
            shown = time.monotonic()

    return tell


def title(step: "Measurement", context: int) -> str:
    """The step that was run, in a line; its last token sees so many cells."""
    from bench.report.words import plural

    return (
        f"{step.model}: a step of {plural(step.tokens, 'token')} at depth {context - step.tokens},"
        f" {plural(step.threads, 'thread')}, median of {len(step.samples)}"
        + (f"; {step.settings}" if step.settings else "")
    )


def about(step: "Measurement", context: int) -> dict[str, Any]:
    """The same for programs, with its time."""
    return {
        "model": step.model,
        "settings": step.settings,
        "tokens": step.tokens,
        "depth": context - step.tokens,
        "threads": step.threads,
        "step_seconds": step.median,
        "samples": step.samples,
    }


def rate(value: float) -> str:
    """A rate with one digit; nothing for none."""
    return f"{value:.1f}" if value else ""


def share(row: "Measurement") -> str:
    """E.g. ` 85% memory read`; an exclamation mark for an impossible one."""
    if not row.share:
        return ""
    return f"{100 * row.reached:3.0f}%{'!' if row.impossible else ''} {row.limit}"
