"""Neurons of sparse blocks in a pool of slots, fetched when predictors select them; and experts of
mixtures, which routers select."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from engine.compile.packed_weights import PAGE, Packer
from engine.compile.plan import PrefetchTask
from engine.gguf.file import GGUFFile
from engine.graph import Value
from engine.offload.bundle import Bundle, part_name, stride_of
from engine.offload.experts import Stack
from engine.offload.pinning import Ints, hottest
from kernels.cpu.formats.packing import aligned
from kernels.cpu.runtime.io_pool import IOPool
from kernels.cpu.runtime.neuron_window import FOREVER, NeuronWindow, slots_needed
from kernels.cpu.runtime.streaming import READS, TOGETHER, arrive, fetch
from reference.op import Array

# Unneeded bytes between two needed neurons that are cheaper to read along than to start another
# read: what a disk delivers in the time that each read costs.
READ_THROUGH = 2**14
WORDS = {"int32": "i32", "int64": "i64", "uint8": "u8"}


@dataclass(frozen=True, slots=True)
class Group:
    """One neuron's rows that are adjacent in the packed file, padded to `stride` bytes: a job
    (packed_weights.py). All matrices of a block in one group are a bundle; with one group each they
    are read separately."""

    tensors: tuple[str, ...]
    stride: int

    @property
    def layout(self) -> str:
        return f"rows of {' '.join(self.tensors)} every {self.stride} bytes"

    def source_bytes(self, file: GGUFFile) -> int:
        return sum(file.tensors[name].n_bytes for name in self.tensors)

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        return file.tensors[self.tensors[0]].dims[0], self.stride

    def pieces(self, file: GGUFFile, packer: Packer) -> Iterator[tuple[int, Array, int]]:
        neurons, begins = file.tensors[self.tensors[0]].dims[0], self.begins(file)
        step = max(1, packer.piece // self.stride)
        for first in range(0, neurons, step):
            count = min(step, neurons - first)
            target = packer.memory(first * self.stride, count * self.stride)
            rows = target.reshape(count, self.stride)
            rows[:] = 0
            read = 0
            for name, begin in begins.items():
                source = file.tensor(name)[first : first + count]
                rows[:, begin : begin + source.shape[1]] = source
                read += source.nbytes
                file.release(name)
            yield first * self.stride, target, read

    def begins(self, file: GGUFFile) -> dict[str, int]:
        """Offset of each tensor's row."""
        sizes = [file.tensors[name].row_bytes for name in self.tensors]
        return dict(zip(self.tensors, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Section:
    """Location of one group of a block's neurons on disk: neuron i's `size` bytes begin at offset +
    i * size in a file (its index among the readers'), and go to byte `at` of its slot."""

    file: int
    offset: int
    size: int
    at: int


@dataclass(frozen=True, slots=True)
class Source:
    """A block's neurons on disk, and the offset of each tensor's rows in a slot; `named` tells
    whether they are experts."""

    neurons: int
    sections: tuple[Section, ...]
    begins: Mapping[str, int]
    named: str = "neurons"

    @property
    def slot(self) -> int:
        """Bytes of a slot."""
        return sum(section.size for section in self.sections)

    def section_of(self, tensor: str) -> int:
        """The section with the tensor's rows."""
        return bisect_right(self.sections, self.begins[tensor], key=lambda s: s.at) - 1


def of_bundle(bundle: Bundle, file: int) -> Source:
    """The source of a block in a model file made by `assay bundle`."""
    begins = {part_name(bundle.block, part): row.begin for part, row in bundle.parts.items()}
    return Source(bundle.neurons, (Section(file, bundle.offset, bundle.stride, 0),), begins)


def groups_of(file: GGUFFile, tensors: Sequence[str], bundled: bool) -> list[Group]:
    """How the packed file stores a block's neurons: bundled, or each matrix by itself."""
    groups = [tuple(tensors)] if bundled else [(name,) for name in tensors]
    return [
        Group(names, stride_of(sum(file.tensors[name].row_bytes for name in names)))
        for names in groups
    ]


def of_groups(file: GGUFFile, groups: Sequence[Group | Stack], offsets: Sequence[int]) -> Source:
    """The source of a block in the packed file, the readers' file 0."""
    sections: list[Section] = []
    begins: dict[str, int] = {}
    at = 0
    for group, offset in zip(groups, offsets, strict=True):
        sections.append(Section(0, offset, group.stride, at))
        begins |= {name: at + begin for name, begin in group.begins(file).items()}
        at += group.stride
    named = "experts" if isinstance(groups[0], Stack) else "neurons"
    return Source(file.tensors[groups[0].tensors[0]].dims[0], tuple(sections), begins, named)


class Neurons:
    """A pool of slots for the neurons of these blocks, in at most `room` bytes, and the shares that
    fill it during a step (kernels/cpu/runtime/streaming.py).

    It always has room for all neurons of any one block, and each other block is guaranteed an equal
    share of the rest; the most recently used stay. `steps`: how many steps an unused neuron may
    stay; None: as long as there is room. With `counts` by block, int64 [neurons], of how often each
    fires, the most active are pinned (engine/offload/pinning.py). The readers' counters from
    `counter` on belong to the sections, block by block.
    """

    def __init__(
        self,
        sources: Mapping[int, Source],
        room: int,
        counter: int,
        steps: int | None = None,
        counts: Mapping[int, Ints] | None = None,
    ) -> None:
        self.blocks = tuple(sources)
        self.sources = sources
        stride = max(source.slot for source in sources.values())
        sizes = [source.neurons for source in sources.values()]
        capacity = min(room // stride - 1, sum(sizes))
        rows = hottest([counts[i] for i in self.blocks], capacity) if counts else [[]] * len(sizes)
        quota = _quota(sizes, [len(several) for several in rows], capacity)
        window = FOREVER if steps is None else steps
        self.window = NeuronWindow(sizes, [quota] * len(sizes), capacity, window)
        self._loads = [self.window.pin(n, several) for n, several in enumerate(rows)]
        # one extra row, for views that begin within a row
        self.pool = aligned((capacity + 1) * stride, PAGE).reshape(capacity + 1, stride)
        most = max(0, READ_THROUGH // stride)
        vectors = max(sizes) * max(len(s.sections) for s in sources.values()) * (1 + most)
        self._most = most
        several = [len(source.sections) for source in sources.values()]
        self._counters = dict(zip(sources, accumulate(several, initial=counter), strict=False))
        self.counters = sum(several)
        self._asked = np.zeros((len(sizes), READS + max(several)), np.int64)
        self._stalls = np.zeros((len(sizes), 1), np.int64)
        self.arrays: dict[str, Array] = {
            "neurons.loads": np.zeros((max(sizes), 2), np.int32),
            "neurons.iovecs": np.zeros((vectors, 2), np.int64),
            "neurons.pool": self.pool,
            "neurons.gap": aligned(stride, PAGE),
        }
        for n, i in enumerate(self.blocks):
            words = [(s.file, s.offset, s.size, s.at) for s in sources[i].sections]
            self.arrays |= {
                f"blk.{i}.sections": np.array(words, np.int64),
                f"blk.{i}.slots": self.window.slots_of(n),
                f"blk.{i}.asked": self._asked[n],
                f"blk.{i}.stall": self._stalls[n],
            }
            for name, begin in sources[i].begins.items():
                self.arrays[pooled(name)] = rows_from(self.pool, begin)

    @property
    def named(self) -> str:
        """What they are: neurons or experts."""
        return next(iter(self.sources.values())).named

    @property
    def kept_share(self) -> float:
        """Share of all neurons that fit in memory at a time."""
        return float(self.window.capacity / self.window.neurons.sum())

    @property
    def pinned(self) -> dict[str, int]:
        """Number of pinned neurons by block."""
        counts = self.window.state.pinned.tolist()
        return {f"blk.{i}": count for i, count in zip(self.blocks, counts, strict=True)}

    @property
    def reads(self) -> int:
        """Largest number of reads in flight."""
        return max(s.neurons * len(s.sections) for s in self.sources.values())

    def read_pinned(self, readers: IOPool) -> None:
        """Read pinned neurons before any step, including small gaps between them."""
        for source, loads in zip(self.sources.values(), self._loads, strict=True):
            for first in range(0, source.neurons, TOGETHER):
                near = loads[loads[:, 0] // TOGETHER == first // TOGETHER]
                if len(near):
                    self._read(source, dict(near.tolist()), readers)

    def _read(self, source: Source, slots: Mapping[int, int], readers: IOPool) -> None:
        """Read from the first of these neurons to the last, each into its slot."""
        stretch, gap = range(min(slots), max(slots) + 1), self.arrays["neurons.gap"]
        for section in source.sections:
            begin, end = section.at, section.at + section.size
            buffers = [
                self.pool[slots[row], begin:end] if row in slots else gap[: section.size]
                for row in stretch
            ]
            readers.read(section.file, section.offset + stretch[0] * section.size, buffers)

    def slots(self, i: int) -> Value:
        return self._value(f"blk.{i}.slots")

    def waits(self, i: int, section: int, readers: IOPool) -> PrefetchTask:
        """The wait for one section of the requested neurons."""
        values: dict[str, Value | float] = {
            "readers": readers.address,
            "counter": self._counters[i],
            "section": section,
            **{n: self._value(f"blk.{i}.{n}") for n in ("asked", "stall", "slots")},
        }
        return PrefetchTask((arrive,), values, frozenset({"slots", "asked"}))

    def service(
        self, i: int, section: int, rows: Value, count: Value, readers: IOPool
    ) -> PrefetchTask:
        """The task that requests the neurons in `rows` and `count` and waits for a section."""
        waits = self.waits(i, section, readers)
        values: dict[str, Value | float] = {
            **waits.arguments,
            "window": self.window.address,
            "rows": rows,
            "count": count,
            "block": self.blocks.index(i),
            "most": self._most,
            "sections": self._value(f"blk.{i}.sections"),
            **{n: self._value(f"neurons.{n}") for n in ("loads", "iovecs", "pool", "gap")},
        }
        return PrefetchTask((fetch, *waits.shares), values, waits.writes)

    def _value(self, name: str) -> Value:
        array = self.arrays[name]
        return Value(name, "cache", WORDS[array.dtype.name], array.shape)

    def restart(self) -> None:
        """Forget everything that was being fetched; readers are idle. Pinned neurons' slots are
        never fetched into."""
        self.window.forget()
        self._asked[:, READS:] = 0

    def stalls(self) -> dict[str, float]:
        """Seconds that steps have waited for the neurons of each block."""
        seconds = 1e-9 * self._stalls[:, 0]
        return {f"blk.{i}": float(s) for i, s in zip(self.blocks, seconds, strict=True)}


def least(sources: Mapping[int, Source]) -> int:
    """Bytes of a pool with room for all neurons of any one block."""
    stride = max(source.slot for source in sources.values())
    return (max(source.neurons for source in sources.values()) + 1) * stride


def pooled(tensor: str) -> str:
    """The name of a tensor's rows in the pool."""
    return f"{tensor}@pool"


def rows_from(pool: Array, begin: int) -> Array:
    """The slots' contents from byte `begin` on, for kernels that take strided rows.

    pool uint8 [slots + 1, stride], C-contiguous, -> uint8 [slots, stride], a view of it that is
    C-contiguous too and ends within the pool's last row, which is no slot.
    """
    rows, stride = pool.shape
    return pool.reshape(-1)[begin : begin + (rows - 1) * stride].reshape(rows - 1, stride)


def _quota(sizes: Sequence[int], pinned: Sequence[int], capacity: int) -> int:
    """The number of neurons that each block is guaranteed to keep besides pinned ones."""
    zeros = np.zeros(len(sizes), np.int32)
    counts = range(max(sizes) + 1)
    return bisect_right(counts, capacity, key=lambda q: slots_needed(sizes, zeros + q, pinned)) - 1
