"""Shared by commands that run a model: progress while it loads, its notes, timings."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from engine.engine import Engine
from engine.generation.timings import Span
from engine.options import Progress as Watcher
from engine.sampling.params import SamplingParams
from engine.shell.command_line.command import as_usage, notes
from engine.shell.command_line.options import Loading
from engine.speculation.settings import Settings
from kernels.certify import Trials
from kernels.dispatch import VariantError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SILENCE = 5.0  # seconds between lines where there is no bar


@contextmanager
def loading(name: str) -> Iterator[Watcher]:
    """Progress of loading: kernels being certified, weights being packed or written, and knobs
    being tuned. Without a terminal, a line every few seconds tells what takes so long."""
    told = time.monotonic()

    def say(trials: Trials) -> None:
        nonlocal told
        from engine.shell.terminal import stderr

        if not (stderr.is_terminal or stderr.quiet) and time.monotonic() > told + SILENCE:
            told = time.monotonic()
            print(f"assay: {trials}", file=sys.stderr, flush=True)

    with ExitStack() as shown:

        @cache
        def bar() -> "Progress":
            from engine.shell.terminal import progress_bar

            return shown.enter_context(progress_bar())

        @cache
        def task(about: str) -> "TaskID":
            return bar().add_task(about, total=None)

        def certified(trials: Trials) -> None:
            now = f"compiling and trying {', '.join(trials.trying)}"
            bar().update(
                task("kernels"), total=trials.total, completed=trials.done, description=now
            )
            say(trials)

        def progress(done: int, total: int) -> None:
            if total > 2**27:
                bar().update(task(name), total=total // 2**20, completed=done // 2**20)

        def tuned(done: int, total: int) -> None:
            bar().update(task("measuring what suits this machine"), completed=done, total=total)

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
    if not quiet:
        _tell(notes())
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
        if not quiet:
            _tell(engine.model.notes)
        yield engine


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        from engine.shell.terminal import note

        note(line)


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
