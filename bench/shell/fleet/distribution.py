"""What the commands of a fleet share: a fleet that is opened and closed, shares behind a bar."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import Only

if TYPE_CHECKING:
    from bench.fleet.distribution import Fleet, Machine
    from bench.fleet.files import Named
    from bench.fleet.shares import Model

LOCAL = "local:"  # and how many workers are started here
OF_BITS = Only("threads", "batch", "kv_format", "variant", "strict")
OF_PROMPTS = Only("context", *OF_BITS.names)


@contextmanager
def opened(asked: typer.Context, *files: "Named") -> "Iterator[Fleet]":
    """The fleet that was asked for; it is closed, and with it what was under way, at the end."""
    from bench.packages import lacking
    from engine.errors import PackageError
    from engine.shell.terminal import note

    if lacking(("distributed",)):
        raise PackageError("a fleet needs Dask: pip install 'assay[fleet]'")
    from bench.fleet.cluster import local
    from bench.fleet.distribution import Fleet

    scheduler = asked.obj
    with ExitStack() as stack:
        if scheduler.startswith(LOCAL):
            count = scheduler.removeprefix(LOCAL)
            if not (count.isascii() and count.isdigit() and 0 < int(count) < 1000):
                raise typer.BadParameter(f"--local is {count!r}: want workers, from 1 up")
            scheduler = stack.enter_context(local(int(count))).scheduler_address
        yield stack.enter_context(Fleet(scheduler, note, files))


@contextmanager
def bar(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar: a function to be called with how many more are done."""
    from engine.shell.terminal import progress_bar

    with progress_bar() as shown:
        task = shown.add_task(name, total=total)
        yield lambda more: shown.update(task, advance=more)


def dealt(
    asked: typer.Context,
    job: Any,
    shares: Iterable[Sequence[Any]],
    name: str,
    total: int | None,
    first: tuple[Any, Any] | None = None,
) -> Iterator[Sequence[Any]]:
    """What a job of a model's finds for each share, in order, behind a bar. Kinds of machines have
    to have the same bits in the `first` job and share, by default the first of these."""
    files = [file for file in (job.model.file, getattr(job, "base", None)) if file]
    coming = iter(shares)
    with opened(asked, *files) as machines, bar(name, total) as advance:
        begin = [] if first else [*islice(coming, 1)]
        machines.agree(*(first or (job, begin[0])))
        for _, found in machines.deal(job, chain(begin, coming)):
            advance(len(found))
            yield found


def each(
    asked: typer.Context, job: Any, name: str, *files: "Named"
) -> "Iterator[tuple[Machine, Any]]":
    """What every machine finds for itself, behind a bar. ValueError if none finds anything."""
    none = True
    with opened(asked, *files) as machines:
        places = {machine.place for machine in machines.machines.values()}
        with bar(name, len(places)) as advance:
            for machine, found in machines.everywhere(job, None):
                none = False
                advance(1)
                yield machine, found
    if none:
        raise ValueError("no machine has done it")


def named(path: Path) -> "Named":
    """A file as workers know it."""
    from bench.fleet.files import Named

    return Named.of(path)


def model_of(model: str, loading: o.Loading, **more: Any) -> "Model":
    """A model as workers hold it; wrong usage is said here."""
    from bench.fleet.shares import Model
    from engine.embedded import resolve

    loading.options()
    return Model(named(resolve(model)), loading, **more)


def batched(found: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """At most so many at a time, none of which is read before it is wanted."""
    coming = iter(found)
    return iter(lambda: [*islice(coming, most)], [])
