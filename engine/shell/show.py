"""Terminal output shared by commands: progress while a model loads, timings, notes."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
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

from engine.engine import Engine
from engine.generation.timings import Span
from engine.options import Progress as Watcher
from engine.progress import ProgressCallback
from engine.sampling.params import SamplingParams
from engine.shell.command_line.command import as_usage, notes
from engine.shell.command_line.options import Loading
from engine.speculation.settings import Settings
from kernels.certify import Trials
from kernels.dispatch import VariantError

stderr = Console(stderr=True)
SILENCE = 5.0  # seconds between lines where there is no bar
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


@contextmanager
def loading(name: str) -> Iterator[Watcher]:
    """Progress of loading: kernels being certified, weights being packed or written, and knobs
    being tuned. Without a terminal, a line every few seconds tells what takes so long."""
    told = time.monotonic()

    def say(trials: Trials) -> None:
        nonlocal told
        if not (stderr.is_terminal or stderr.quiet) and time.monotonic() > told + SILENCE:
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

        def progress(done: int, total: int) -> None:
            bar.update(work, visible=total > 2**27, total=total // 2**20, completed=done // 2**20)

        def tuned(done: int, total: int) -> None:
            bar.update(knobs, visible=True, completed=done, total=total)

        yield Watcher(certified, progress, tuned)


@contextmanager
def loaded(
    model: str,
    options: Loading | None = None,
    *,
    quiet: bool = False,
    draft: str | None = None,
    speculation: Settings | None = None,
    sampling: SamplingParams | None = None,
    **more: Any,
) -> Iterator[Engine]:
    """Load the engine for a command, with progress bars; `quiet` if an earlier load has printed its
    notes. `more` are internal options."""
    for line in [] if quiet else notes():
        note(line)
    with loading("packing weights (MB)") as watcher:
        try:
            engine = Engine.load(
                model,
                (options or Loading()).options(progress=watcher, **more),
                draft=draft,
                speculation=speculation,
                sampling=sampling,
            )
        except VariantError as error:
            raise typer.BadParameter(str(error)) from None
    with engine:
        if sampling and sampling.structured_outputs:
            with as_usage():  # forms that only this vocabulary can check
                engine.samplers.grammars.constraint(sampling.structured_outputs)
        for line in [] if quiet else engine.model.notes:
            note(line)
        yield engine


def print_timings(engine: Engine) -> None:
    """Print llama.cpp's timing lines to stderr."""
    drafts = engine.timings.speculation
    print("\n", file=sys.stderr)
    more = {"draft": drafts.draft, "verify": drafts.verify} if drafts else {}
    for name, span in (_spans(engine) | more).items():
        line = f"{name:>12} time = {1000 * span.seconds:10.2f} ms"
        if span.tokens:
            each = f"{1000 * span.seconds / span.tokens:8.2f} ms per token"
            line += f" / {span.tokens:5d} tokens ({each}, {span.rate:9.2f} tokens/s)"
        print(line, file=sys.stderr)
    if engine.model.options.kv_policy:
        print(f"{'cache':>12} {engine.timings.cache:,} bytes", file=sys.stderr)
    if drafts:
        print(
            f"{'drafted':>12} {drafts.drafted} tokens, accepted {drafts.accepted}"
            f" ({drafts.acceptance:.1%}), {drafts.tokens_per_step:.2f} tokens a step",
            file=sys.stderr,
        )


def timings_json(engine: Engine) -> dict[str, dict[str, Any]]:
    """The same figures for programs: seconds, tokens, tokens per second."""
    found: dict[str, dict[str, Any]] = {
        name.replace(" ", "_"): {
            "seconds": span.seconds,
            "tokens": span.tokens,
            "tokens_per_second": span.rate,
        }
        for name, span in _spans(engine).items()
    }
    if engine.model.options.kv_policy:
        found["cache"] = {"bytes": engine.timings.cache}
    if drafts := engine.timings.speculation:
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


def _spans(engine: Engine) -> dict[str, Span]:
    """The phases of a run, by llama.cpp's names."""
    t = engine.timings
    return {
        "load": t.load,
        "prompt eval": t.prompt,
        "eval": t.eval,
        "sample": t.sample,
        "total": t.total,
    }
