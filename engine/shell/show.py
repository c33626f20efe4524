"""What commands share on the terminal: progress while a model loads, timings, notes."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from engine.engine import Engine
from engine.options import Options
from engine.options import Progress as Watcher
from engine.sampling_params import SamplingParams
from engine.speculation.settings import Settings
from engine.timings import Span
from engine.watch import Watch
from kernels.certify import Trials

stderr = Console(stderr=True)
SILENCE = 5.0  # seconds after which there is a line where there is no bar
PIPE_WIDTH = 200  # columns of a table that no terminal limits


def stdout() -> Console:
    """For tables: as wide as the terminal, and wide enough where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


def progress_bar() -> Progress:
    """A bar on stderr that vanishes when done; nothing where stderr is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )


@contextmanager
def bytes_bar(name: str) -> Iterator[Watch]:
    """For a file being written: a function of bytes done and their total."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )
    with bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def loading(name: str) -> Iterator[Watcher]:
    """Who to tell of kernels that are tried, of weights that are packed or written, and of knobs.
    Without a terminal a line every few seconds says what takes so long."""
    told = time.monotonic()

    def say(trials: Trials) -> None:
        nonlocal told
        if not stderr.is_terminal and time.monotonic() > told + SILENCE:
            told = time.monotonic()
            print(f"assay: {trials}", file=sys.stderr, flush=True)

    with progress_bar() as bar:
        kernels = bar.add_task("", visible=False, total=None)
        work = bar.add_task(name, visible=False, total=None)
        knobs = bar.add_task("measuring what suits this machine", visible=False, total=None)

        def certified(trials: Trials) -> None:
            now = f"compiling and trying {', '.join(trials.trying)}"
            bar.update(
                kernels, visible=True, total=trials.total, completed=trials.done, description=now
            )
            say(trials)

        def watch(done: int, total: int) -> None:
            bar.update(work, visible=total > 2**27, total=total // 2**20, completed=done // 2**20)

        def tuned(done: int, total: int) -> None:
            bar.update(knobs, visible=True, completed=done, total=total)

        yield Watcher(certified, watch, tuned)


@contextmanager
def loaded(
    model: str,
    quiet: bool = False,
    draft: str | None = None,
    speculation: Settings | None = None,
    sampling: SamplingParams | None = None,
    **options: Any,
) -> Iterator[Engine]:
    """The engine for a command, with a progress bar while kernels are certified; `quiet` where an
    earlier load has told its notes."""
    with loading("packing weights (MB)") as watcher:
        engine = Engine.load(
            model,
            Options(progress=watcher, **options),
            draft=draft,
            speculation=speculation,
            sampling=sampling,
        )
    with engine:
        for note in [] if quiet else engine.model.notes:
            stderr.print(f"note: {note}", style="yellow", highlight=False, soft_wrap=True)
        yield engine


def print_timings(engine: Engine) -> None:
    """The lines the field prints, to stderr."""
    t = engine.timings

    def line(name: str, span: Span) -> str:
        text = f"{name:>12} time = {1000 * span.seconds:10.2f} ms"
        if not span.tokens:
            return text
        each = f"{1000 * span.seconds / span.tokens:8.2f} ms per token"
        return f"{text} / {span.tokens:5d} tokens ({each}, {span.rate:9.2f} tokens/s)"

    print("\n", file=sys.stderr)
    for name, span in (
        ("load", t.load), ("prompt eval", t.prompt), ("eval", t.eval), ("sample", t.sample),
        ("total", t.total),
    ):  # fmt: skip
        print(line(name, span), file=sys.stderr)
    if drafts := t.speculation:
        print(line("draft", drafts.draft), file=sys.stderr)
        print(line("verify", drafts.verify), file=sys.stderr)
        print(
            f"{'drafted':>12} {drafts.drafted} tokens, accepted {drafts.accepted}"
            f" ({drafts.acceptance:.1%}), {drafts.tokens_per_step:.2f} tokens a step",
            file=sys.stderr,
        )


def timings_json(engine: Engine) -> dict[str, dict[str, Any]]:
    """The same figures for programs: seconds, tokens, tokens per second."""
    t = engine.timings
    spans = {
        "load": t.load,
        "prompt_eval": t.prompt,
        "eval": t.eval,
        "sample": t.sample,
        "total": t.total,
    }
    found: dict[str, dict[str, Any]] = {
        name: {"seconds": s.seconds, "tokens": s.tokens, "tokens_per_second": s.rate}
        for name, s in spans.items()
    }
    if drafts := t.speculation:
        found["speculation"] = {
            "drafted": drafts.drafted,
            "accepted": drafts.accepted,
            "acceptance": drafts.acceptance,
            "acceptance_by_position": drafts.acceptance_at,
            "steps": drafts.steps,
            "tokens_per_step": drafts.tokens_per_step,
            "draft_seconds": drafts.draft.seconds,
            "verify_seconds": drafts.verify.seconds,
        }
    return found
