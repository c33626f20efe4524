"""What a model within a budget reads from disk while it runs, block by block."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields

from engine.offload.offload import Offload


@dataclass(frozen=True, slots=True)
class Block:
    """Of a block, or of a weight outside of all blocks: seconds that steps waited for the disk,
    bytes of weights that always stream, neurons (or experts) that were in memory and that were
    read, and the bytes of these; and those that are in memory for good."""

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
        """Of the neurons that were needed; NaN where none were."""
        needed = self.hits + self.misses
        return self.hits / needed if needed else math.nan


@dataclass(frozen=True, slots=True)
class Reading:
    """So many steps: bytes that came from disk, neurons between two that were needed and bytes read
    ahead of the next step among them; seconds with a read under way; what its blocks had, and if
    their `neurons` are experts."""

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
    """Looks at a model's weights on disk from now on."""

    def __init__(self, offload: Offload) -> None:
        self._offload = offload
        self._before = self._now()

    def read(self, steps: int) -> Reading:
        """Of these steps, which were all since the meter was made."""
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
        """Bytes and seconds of the readers; of each block seconds waited, hits, misses and their
        bytes: all since the model was loaded."""
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
    """The block that a weight belongs to, or its own name where it belongs to none."""
    words = weight.partition("@")[0].removesuffix(".weight").split(".")
    return ".".join(words[:2]) if words[0] == "blk" else ".".join(words)


def place(block: str) -> tuple[bool, int, str]:
    """By which blocks are sorted: in their order, other weights after them."""
    number = block.removeprefix("blk.")
    return (False, int(number), "") if number.isdigit() else (True, 0, block)
