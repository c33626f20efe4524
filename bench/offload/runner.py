# ruff: noqa: ARG002 - a runner uses what it needs of the common signature
"""What runs in the process of a way: a contender with its counters, or a disk alone."""

import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import numpy as np

from bench.contenders.contender import Contender, Setup
from bench.contenders.session import settle
from bench.offload.meter import Meter
from bench.offload.raw import RawReader
from bench.offload.way import BEFORE, DISK, LLAMA_CPP, MEANWHILE, NO_WINDOW, About, Process, Sample
from engine.offload.budget import Budget
from engine.offload.offload import Offload

BATCH = 64  # tokens of a step, which is of one: activations of more would take memory
IN_A_ROW = 2**29  # bytes of a reading
AWAKE = 2**26  # bytes after which readers that slept are all at work
SCATTERED = 4000  # reads of one
IO = Path("/proc/self/io")
QUIET = 0.01  # seconds without a read after which none is on its way


class Runner(Protocol):
    """What one process has open."""

    def about(self) -> dict[str, Any]:
        """An `About`."""

    def sample(self, tokens: list[int], uncounted: int, naive: str) -> dict[str, Any]:
        """A `Sample` of one step a token, of which the first so many are not counted."""


def opened(
    process: dict[str, Any], model: str, threads: int, context: int, packed: str, alone: bool
) -> Runner:
    """`packed` is the file that the disk reads, and whoever reads all of a model. With `alone` a
    budget is of weights alone, for models that are smaller than the interpreter."""
    wanted, path = Process(**process), Path(model)
    if wanted.who == DISK:
        return Disk(Path(packed), wanted.scattered)
    setup = Setup(threads, context, batch=BATCH)
    if wanted.who == LLAMA_CPP:
        from bench.contenders.llama_cpp import LlamaCppMapped

        return Peer(LlamaCppMapped(path, setup))
    from bench.contenders.assay import Assay

    setup = replace(
        setup,
        sparse=wanted.sparse,
        ram_budget=wanted.budget,
        neuron_window=0 if wanted.window == NO_WINDOW else wanted.window,
        neuron_bundles=wanted.bundles,
    )
    with patch.object(Budget, "now", of_weights) if alone else nullcontext():
        ours = Assay(path, setup)
    if offload := ours.engine.model.offload:
        return Streamed(ours, offload, forgets=wanted.window == NO_WINDOW)
    return Naive(ours, Path(packed)) if packed else Peer(ours)


def of_weights(total: int, cache: int, step: int) -> Budget:
    """A budget in which nothing else counts."""
    return Budget(total, 0, 0, 0)


def step(contender: Contender, token: int, position: int) -> None:
    contender.evaluate(np.array([[token]], np.int32), position)


class Peer:
    """A contender of which the system alone tells what it reads."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender

    def about(self) -> dict[str, Any]:
        return asdict(About())

    def sample(self, tokens: list[int], uncounted: int, naive: str) -> dict[str, Any]:
        if naive:
            raise ValueError("there is no packed file yet that could be read")
        self._contender.hold(1, 0)
        for i, token in enumerate(tokens[:uncounted]):
            step(self._contender, token, i)
        before, started = read_bytes(), time.perf_counter()
        for i, token in enumerate(tokens[uncounted:], uncounted):
            step(self._contender, token, i)
        seconds, count = time.perf_counter() - started, len(tokens) - uncounted
        found = Sample(seconds / count, (read_bytes() - before) / count)
        settle()
        return asdict(found)


class Naive:
    """A model that is all in memory, and may be read from disk again for every step; what is read
    is not what is computed with, which costs as much."""

    def __init__(self, contender: Contender, packed: Path) -> None:
        self._contender, self._reader = contender, RawReader(packed)

    def about(self) -> dict[str, Any]:
        return asdict(About(notes=(self._reader.note,) if self._reader.note else ()))

    def sample(self, tokens: list[int], uncounted: int, naive: str) -> dict[str, Any]:
        self._contender.hold(1, 0)
        for i, token in enumerate(tokens[:uncounted]):
            step(self._contender, token, i)
        count, waited, busy = len(tokens) - uncounted, 0.0, self._reader.busy
        started = time.perf_counter()
        for i, token in enumerate(tokens[uncounted:], uncounted):
            waited += self._step(token, i, naive)
        seconds = time.perf_counter() - started
        busy = self._reader.busy - busy
        settle()
        n_bytes = self._reader.size if naive else 0
        return asdict(Sample(seconds / count, n_bytes, busy / count, waited / count))

    def _step(self, token: int, position: int, naive: str) -> float:
        """Seconds in which the disk alone was at work."""
        if not naive:
            step(self._contender, token, position)
            return 0.0
        started = time.perf_counter()
        self._reader.begin()
        if naive == MEANWHILE:
            step(self._contender, token, position)
            started = time.perf_counter()
        self._reader.finish()
        waited = time.perf_counter() - started
        if naive == BEFORE:
            step(self._contender, token, position)
        return waited


class Streamed:
    """A model within a budget; one that `forgets` keeps no neuron from step to step."""

    def __init__(self, contender: Contender, offload: Offload, forgets: bool) -> None:
        self._contender, self._offload, self._forgets = contender, offload, forgets

    def about(self) -> dict[str, Any]:
        offload, neurons = self._offload, self._offload.neurons
        found = About(
            resident=offload.resident,
            streamed=offload.stream.bytes,
            packed=offload.readers.files[0].name,
            notes=tuple(note for note in offload.notes if not note.startswith("ram_budget")),
        )
        if neurons:
            sections = next(iter(neurons.sources.values())).sections
            largest = max(section.size for section in sections)
            found = replace(
                found, pool=neurons.pool.nbytes, kept=neurons.kept_share, neuron=largest
            )
        return asdict(found)

    def sample(self, tokens: list[int], uncounted: int, naive: str) -> dict[str, Any]:
        """The uncounted ones bring the reading ahead to where it stands after every step."""
        self._contender.hold(1, 0)
        for i, token in enumerate(tokens[:uncounted]):
            self._step(token, i)
        meter, started = Meter(self._offload), time.perf_counter()
        for i, token in enumerate(tokens[uncounted:], uncounted):
            self._step(token, i)
        seconds, count = time.perf_counter() - started, len(tokens) - uncounted
        found = meter.read(count)
        every = found.whole
        self._come_to_rest()
        return asdict(
            Sample(
                seconds / count, found.bytes / count, found.busy / count, every.waited / count,
                every.hits / count, every.misses / count,
            )
        )  # fmt: skip

    def _step(self, token: int, position: int) -> None:
        if self._forgets and self._offload.neurons:
            self._offload.neurons.window.forget()
        step(self._contender, token, position)

    def _come_to_rest(self) -> None:
        """Wait for what is read ahead of a next step."""
        before = -1
        while (now := self._offload.readers.statistics.bytes) > before:
            before = now
            time.sleep(QUIET)
        settle()


class Disk:
    """The disk alone: how fast it can be read."""

    def __init__(self, packed: Path, scattered: int) -> None:
        self._reader, self._size = RawReader(packed), scattered

    def about(self) -> dict[str, Any]:
        return asdict(About(notes=(self._reader.note,) if self._reader.note else ()))

    def sample(self, tokens: list[int], uncounted: int, naive: str) -> dict[str, Any]:
        """Of a reading, whatever the tokens."""
        self._reader.sequential(AWAKE)
        busy = self._reader.busy
        if self._size:
            n_bytes, seconds = self._reader.scattered(self._size, SCATTERED)
        else:
            n_bytes, seconds = self._reader.sequential(IN_A_ROW)
        return asdict(Sample(seconds, n_bytes, self._reader.busy - busy, seconds))


def read_bytes() -> int:
    """What this process had from disk so far, pages of mapped files among it."""
    for line in IO.read_text().splitlines():
        if line.startswith("read_bytes:"):
            return int(line.split()[1])
    raise OSError(f"{IO}: no read_bytes in it")
