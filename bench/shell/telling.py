"""How measurements are told while they come, and above their tables."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

    from bench.offload.step import StreamedStep
    from bench.profile import Profile

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


def title(found: "Profile | StreamedStep") -> str:
    """What was run, in a line."""
    tokens = "1 token" if found.tokens == 1 else f"{found.tokens} tokens"
    threads = "1 thread" if found.threads == 1 else f"{found.threads} threads"
    return (
        f"{found.model}: a step of {tokens} at depth {found.context - found.tokens},"
        f" {threads}, median of {len(found.samples)}"
        + (f"; {found.settings}" if found.settings else "")
    )


def rate(value: float) -> str:
    """A rate with one digit; nothing for none."""
    return f"{value:.1f}" if value else ""
