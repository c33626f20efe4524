"""How measurements are told while they come, and above their tables."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from bench.results import Measurement

REDRAW_SECONDS = 0.25


def teller(bar: "Progress", description: str) -> Callable[..., None]:
    """Tells a still bar how much is done, of how much if known, and redraws it now and then."""
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
    """Which step was run, in a line; its last token sees so many cells."""
    from bench.report.table import plural

    return (
        f"{step.model}: a step of {plural(step.tokens, 'token')} at depth {context - step.tokens},"
        f" {plural(step.threads, 'thread')}, median of {len(step.samples)}"
        + (f"; {step.settings}" if step.settings else "")
    )


def rate(value: float) -> str:
    """A rate with one digit; nothing for none."""
    return f"{value:.1f}" if value else ""


def share(row: "Measurement") -> str:
    """E.g. ` 85% memory read`; an exclamation mark for what cannot be."""
    if not row.share:
        return ""
    return f"{100 * row.reached:3.0f}%{'!' if row.impossible else ''} {row.limit}"
