"""Measures disk reads of a model under a budget, block by block, and where a step of it waits for
the disk.

Nodes are not timed one by one, as in bench/engine/profile.py: one node's weights are read while
others run, so a node's time by itself says nothing.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from bench.engine.profile import RULE, ProfileError, check
from bench.race.experiment import Rule, race
from bench.race.results import Measurement
from engine.engine import Engine
from engine.offload.offload import Offload
from engine.sparsity import settings

UNCOUNTED = 2  # steps after which read-ahead is in its steady state


@dataclass(frozen=True, slots=True)
class Block:
    """A block, or a weight outside all blocks: seconds that steps waited for the disk, bytes of
    weights that always stream, neurons (or experts) found in memory and read, the bytes of these;
    and pinned ones."""

    waited: float = 0.0
    weights: float = 0.0
    hits: float = 0.0
    misses: float = 0.0
    neurons: float = 0.0
    pinned: int = 0

    @property
    def bytes(self) -> float:
        return self.weights + self.neurons

    @property
    def hit_rate(self) -> float:
        """Hit rate of the needed neurons; NaN where none were."""
        needed = self.hits + self.misses
        return self.hits / needed if needed else math.nan


@dataclass(frozen=True, slots=True)
class Reading:
    """So many steps: bytes read from disk, including gaps between needed neurons and read-ahead for
    the next step; seconds with a read in flight; the blocks; and whether their `neurons` are
    experts."""

    steps: int
    bytes: float
    busy: float
    blocks: Mapping[str, Block]
    named: str = "neurons"

    @property
    def rate(self) -> float:
        """Bytes a second while anything was read."""
        return self.bytes / self.busy if self.busy else 0.0

    @property
    def whole(self) -> Block:
        """All blocks together."""
        return Block(
            *(sum(getattr(b, f.name) for b in self.blocks.values()) for f in fields(Block))
        )


class Meter:
    """Measures a model's disk reads from now on."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._before = self._now()

    def read(self, steps: int) -> Reading:
        """The reading of these steps, all since the meter was created."""
        (bytes_before, busy_before, before), (n_bytes, busy, after) = self._before, self._now()
        stream, pool = self._offload.stream, self._offload.neurons
        pinned = pool.pinned if pool else {}
        sizes: dict[str, int] = {}
        for name, weight in stream.weights.items():
            sizes[block_of(name)] = sizes.get(block_of(name), 0) + weight.nbytes
        blocks = {}
        for name, now in after.items():
            waited, hits, misses, neurons = (b - a for a, b in zip(before[name], now, strict=True))
            weights = steps * sizes.get(name, 0)
            blocks[name] = Block(waited, weights, hits, misses, neurons, pinned.get(name, 0))
        named = pool.named if pool else "neurons"
        return Reading(steps, n_bytes - bytes_before, busy - busy_before, blocks, named)

    def _now(self) -> tuple[int, float, dict[str, tuple[float, ...]]]:
        """Bytes and seconds of the readers; by block seconds waited, hits, misses and their bytes,
        all since the model was loaded."""
        offload, neurons = self._offload, self._offload.neurons
        waited: dict[str, float] = {}
        for name, seconds in offload.stream.stalls().items():
            waited[block_of(name)] = waited.get(block_of(name), 0.0) + seconds
        met: dict[str, tuple[float, ...]] = {}
        if neurons:
            for name, seconds in neurons.stalls().items():
                waited[name] = waited.get(name, 0.0) + seconds
            state = neurons.window.state
            for n, i in enumerate(neurons.blocks):
                misses = int(state.misses[n])
                met[f"blk.{i}"] = int(state.hits[n]), misses, misses * neurons.sources[i].slot
        found = {
            name: (waited[name], *met.get(name, (0, 0, 0))) for name in sorted(waited, key=place)
        }
        statistics = offload.readers.statistics
        return statistics.bytes, statistics.seconds, found


def block_of(weight: str) -> str:
    """The block of a weight, or its own name if it has none."""
    words = weight.partition("@")[0].removesuffix(".weight").split(".")
    return ".".join(words[:2]) if words[0] == "blk" else ".".join(words)


def place(block: str) -> tuple[bool, int, str]:
    """Sort key of blocks: in order, other weights after them."""
    number = block.removeprefix("blk.")
    return (False, int(number), "") if number.isdigit() else (True, 0, block)


@dataclass(frozen=True, slots=True)
class StreamedStep:
    """The row of a step whose last token sees `context` cells, and the disk reads of all its
    samples."""

    step: Measurement
    context: int
    reading: Reading


def streamed_step(
    engine: Engine,
    tokens: int = 1,
    depth: int = 128,
    rule: Rule = RULE,
    progress: Callable[[int], None] | None = None,
) -> StreamedStep:
    """Time a step of a model with a `ram_budget`, as `bench.engine.profile` times others. Tokens
    are random and fresh for each step: the last ones' neurons are still in memory."""
    model = engine.model
    check(engine, tokens, depth)
    if not model.offload:
        raise ProfileError("this model has no ram_budget: nothing of it is read while it runs")
    rng = np.random.default_rng(0)

    def fresh(count: int) -> list[int]:
        return [int(token) for token in rng.integers(model.config.vocab, size=count)]

    def run() -> float:
        model.cells.remove(0, depth)
        started = time.perf_counter()
        model.evaluate(fresh(tokens), depth)
        return time.perf_counter() - started

    engine.reset()
    try:
        if depth:
            model.evaluate(fresh(depth), 0)
        for _ in range(UNCOUNTED):
            run()
        meter = Meter(model.offload)
        samples = race({"step": run}, rule, progress)["step"]
        reading = meter.read(len(samples))
    finally:
        engine.reset()
    row = Measurement(
        bench="node",
        test="step",
        model=model.file.path.stem,
        settings=settings(model.config, model.options.sparse),
        tokens=tokens,
        threads=model.team.n_threads,
        samples=tuple(samples),
    )
    return StreamedStep(row, depth + tokens, reading)
