# ruff: noqa: ARG002 - a runner uses what it needs of the common signature
"""The process of a way: a contender with its counters, or the bare disk, read without computation:
the reference for streaming models."""

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

from bench.child import settle
from bench.contenders.contender import Contender, Setup
from bench.offload.meter import Meter
from bench.offload.way import BEFORE, DISK, LLAMA_CPP, NO_WINDOW, About, Process
from bench.race.experiment import Sample
from engine.offload.budget import Budget
from engine.offload.direct_file import PAGE, DirectFile
from engine.offload.offload import READERS, Offload
from engine.offload.stream import PIECE
from kernels.cpu.formats.packing import aligned
from kernels.cpu.runtime.io_pool import IOPool
from kernels.cpu.runtime.share import pack_words
from kernels.cpu.runtime.streaming import ASKED, LINE, STEP, TURN, turn

BATCH = 64  # tokens of a step, which has one: activations of more would take memory
IN_A_ROW = 2**29  # bytes of a reading
AWAKE = 2**26  # bytes after which sleeping readers are all at work
SCATTERED = 4000  # reads of one
QUIET = 0.01  # seconds without a read after which none is in flight
MEMORY = 2**26  # bytes of a buffer that is reused: its contents do not matter
CAPACITY = 2**16  # requests in flight


class Served:
    """A child's object. Before it opens anything it has loaded next to nothing, so that a memory
    limit set then covers all that it uses."""

    def open(self, **way: Any) -> About:
        """The opened object, which then answers requests for samples."""
        runner = opened(**way)
        self.sample = runner.sample
        return runner.about()


def opened(
    process: Process, model: Path, threads: int, context: int, packed: str, alone: bool
) -> "Runner | Disk":
    """`packed` is the file that the disk, or the naive way, reads. With `alone` a budget is for
    weights alone, for models smaller than the interpreter."""
    if process.who == DISK:
        return Disk(Path(packed), process.scattered)
    setup = Setup(threads, context, batch=BATCH)
    if process.who == LLAMA_CPP:
        from bench.contenders.llama_cpp import LlamaCppMapped

        return Runner(LlamaCppMapped(model, setup))
    from bench.contenders.assay import Assay

    setup = replace(
        setup,
        sparse=process.sparse,
        ram_budget=process.budget,
        neuron_window=0 if process.window == NO_WINDOW else process.window,
        neuron_bundles=process.bundles,
    )
    with patch.object(Budget, "now", of_weights) if alone else nullcontext():
        ours = Assay(model, setup)
    if offload := ours.engine.model.offload:
        return Streamed(ours, offload, forgets=process.window == NO_WINDOW)
    return Naive(ours, Path(packed)) if packed else Runner(ours)


def of_weights(total: int, *_: int) -> Budget:
    """A budget in which only weights count."""
    return Budget(total, 0, 0, 0)


class Runner:
    """A contender that runs one step per token, with its counters; here the system alone tells what
    it reads."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender

    def about(self) -> About:
        return About()

    def sample(self, tokens: list[int], uncounted: int, naive: str) -> Sample:
        """One step per token, of which the first so many are warm-up: a token's seconds, with the
        parts of bench/offload/race.py; of a disk, those of a read."""
        self._contender.hold(1, 0)
        for i, token in enumerate(tokens[:uncounted]):
            self.step(token, i, "")
        before, started = self.counters(), time.perf_counter()
        for i, token in enumerate(tokens[uncounted:], uncounted):
            self.step(token, i, naive)
        seconds = time.perf_counter() - started
        parts = {name: now - before[name] for name, now in self.counters().items()}
        self.rest()
        return sampled(len(tokens) - uncounted, seconds, **parts)

    def step(self, token: int, position: int, naive: str) -> None:
        if naive:
            raise ValueError("there is no packed file yet that could be read")
        self._contender.evaluate(np.array([[token]], np.int32), position)

    def counters(self) -> dict[str, float]:
        """Parts of a sample, totals since the process began."""
        return {"bytes": psutil.Process().io_counters().read_bytes}  # mapped files included

    def rest(self) -> None:
        """Wait until CPU and disk are idle."""
        settle()


class Naive(Runner):
    """A model entirely in memory that is read from disk again for every step; the bytes read are
    not those computed with, at the same cost."""

    def __init__(self, contender: Contender, packed: Path) -> None:
        super().__init__(contender)
        self._reader, self._waited, self._bytes = RawReader(packed), 0.0, 0

    def about(self) -> About:
        return About(notes=(self._reader.note,) if self._reader.note else ())

    def step(self, token: int, position: int, naive: str) -> None:
        """Time in which only the disk works counts as waiting."""
        started = time.perf_counter()
        if naive:
            self._reader.begin()
            self._bytes += self._reader.size
        if naive != BEFORE:
            super().step(token, position, "")
            started = time.perf_counter()
        if naive:
            self._reader.finish()
            self._waited += time.perf_counter() - started
        if naive == BEFORE:
            super().step(token, position, "")

    def counters(self) -> dict[str, float]:
        return {"bytes": self._bytes, "reading": self._reader.busy, "waiting": self._waited}


class Streamed(Runner):
    """A model under a budget; one that `forgets` keeps no neuron between steps. Warm-up tokens
    bring read-ahead into its steady state."""

    def __init__(self, contender: Contender, offload: Offload, forgets: bool) -> None:
        super().__init__(contender)
        self._offload, self._forgets, self._meter = offload, forgets, Meter(offload)

    def about(self) -> About:
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
        return found

    def step(self, token: int, position: int, naive: str) -> None:
        if self._forgets and self._offload.neurons:
            self._offload.neurons.window.forget()
        super().step(token, position, naive)

    def counters(self) -> dict[str, float]:
        found = self._meter.read(0)
        every = found.whole
        parts = {"bytes": found.bytes, "reading": found.busy, "waiting": every.waited}
        return parts | (
            {"found": every.hits, "missed": every.misses} if self._offload.neurons else {}
        )

    def rest(self) -> None:
        """Wait for read-ahead of the next step, too."""
        before = -1
        while (now := self._offload.readers.statistics.bytes) > before:
            before = now
            time.sleep(QUIET)
        settle()


class Disk:
    """The bare disk: how fast it can be read, whatever the tokens."""

    def __init__(self, packed: Path, scattered: int) -> None:
        self._reader, self._size = RawReader(packed), scattered

    def about(self) -> About:
        return About(notes=(self._reader.note,) if self._reader.note else ())

    def sample(self, tokens: list[int], uncounted: int, naive: str) -> Sample:
        """One read, once the readers are awake."""
        self._reader.sequential(AWAKE)
        busy = self._reader.busy
        if self._size:
            n_bytes, seconds = self._reader.scattered(self._size, SCATTERED)
        else:
            n_bytes, seconds = self._reader.sequential(IN_A_ROW)
        return sampled(1, seconds, bytes=n_bytes, reading=self._reader.busy - busy)


def sampled(tokens: int, seconds: float, **parts: float) -> Sample:
    """Per-token figures from the totals of so many."""
    return Sample(seconds / tokens, {name: part / tokens for name, part in parts.items()})


Array = np.ndarray[Any, np.dtype[Any]]


class RawReader:
    """Reads one file with O_DIRECT, by the readers and the compiled code that models stream with;
    ends with the process.

    size     bytes of the file, in whole sectors note     why the page cache is used after all, or
    None
    """

    def __init__(self, path: Path) -> None:
        turn.compile()
        self._file = DirectFile(path)
        self.note = self._file.note
        self._unit = max(self._file.file.alignment, 512)
        self.size = path.stat().st_size // PAGE * PAGE
        self._memory = aligned(MEMORY, PAGE)
        self._memory[:] = 0  # else the first read would wait for the system to allocate it
        self._readers = IOPool([self._file.file], READERS, capacity=CAPACITY)
        self._rng = np.random.default_rng(0)
        self._at = 0
        self._kept: dict[str, Any] = {}

    def begin(self) -> None:
        """Request the whole file; nothing else may be requested before `finish`."""
        self._post(np.arange(0, self.size, PIECE), PIECE)

    def finish(self) -> None:
        """Wait for all requests. Raises OSError where the file cannot be read."""
        if not self._readers.wait(0, len(self._kept["pieces"])):
            raise OSError(self._readers.fault or "the readers were stopped")

    @property
    def busy(self) -> float:
        """Seconds with a read in flight."""
        return self._readers.statistics.seconds

    def sequential(self, n_bytes: int) -> tuple[int, float]:
        """Read so many consecutive bytes, from where the last read ended, wrapping around at the
        file's end: bytes and seconds."""
        pieces = -(-self.size // PIECE)
        count = -(-n_bytes // PIECE)
        which = (self._at + np.arange(count)) % pieces
        self._at = (self._at + count) % pieces
        return self._timed(which * PIECE, PIECE)

    def scattered(self, size: int, count: int) -> tuple[int, float]:
        """Read `size` bytes, whole sectors, at so many random places: bytes and seconds."""
        size = -(-size // self._unit) * self._unit
        return self._timed(self._rng.integers(0, self.size // size, count) * size, size)

    def _timed(self, offsets: Array, size: int) -> tuple[int, float]:
        before, started = self._readers.statistics.bytes, time.perf_counter()
        self._post(offsets, size)
        self.finish()
        seconds = time.perf_counter() - started
        return self._readers.statistics.bytes - before, seconds

    def _post(self, offsets: Array, size: int) -> None:
        """Request so many bytes at each of these offsets, none beyond the end."""
        count = len(offsets)
        iovecs = np.zeros((count, 2), np.int64)
        addresses = self._memory.ctypes.data + np.arange(count) % (MEMORY // size) * size
        sizes = np.minimum(size, self.size - offsets)
        places = iovecs.ctypes.data + iovecs.strides[0] * np.arange(count)
        state = np.full(STEP + LINE, -1, np.int64)
        state[ASKED] = 0
        self._kept = {  # the one weight of a step that begins
            "readers": self._readers.address,
            "pieces": np.column_stack([offsets, addresses, sizes, places]).astype(np.int64),
            "firsts": np.array([0, count], np.int64),
            "after": np.zeros(1, np.int64),
            "iovecs": iovecs,
            "state": state,
            "stalls": np.zeros(1, np.int64),
            "used": 0,
            "wanted": 0,
        }
        self._readers.reset()
        turn(pack_words(TURN, self._kept))
