"""Weights that rotate through a ring buffer while steps run, read ahead from the packed file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.compile.packed_weights import PAGE, paged
from engine.offload.residency import Ring
from kernels.cpu.formats.packing import aligned
from kernels.cpu.runtime.io_pool import IOPool
from kernels.cpu.runtime.sequence import Entry
from kernels.cpu.runtime.share import pack_words
from kernels.cpu.runtime.streaming import ASKED, LINE, STEP, TURN, turn
from reference.op import Array

PIECE = 2**20  # bytes of one read; several in flight keep a disk busy


@dataclass(frozen=True, slots=True)
class Stored:
    """Location of a weight in the packed file."""

    offset: int
    size: int


class Stream:
    """The ring buffer and the waits of a step (kernels/cpu/runtime/streaming.py).

    names      the weights in the order of a step weights    by name, uint8 [packed]: contents are
    valid only during their turn
    """

    def __init__(self, ring: Ring, stored: Mapping[str, Stored], threads: int) -> None:
        self.names = ring.names
        self._memory = aligned(ring.size, PAGE)
        self._state = np.zeros(STEP + LINE * threads, np.int64)
        self.weights: dict[str, Array] = {}
        self.bytes = sum(stored[name].size for name in ring.names)
        pieces: list[tuple[int, int, int]] = []
        firsts = [0]
        for name, begin in zip(ring.names, ring.offsets, strict=True):
            where = stored[name]
            self.weights[name] = memory = self._memory[begin : begin + where.size]
            end = paged(where.size)
            pieces += [
                (where.offset + at, memory.ctypes.data + at, min(PIECE, end - at))
                for at in range(0, end, PIECE)
            ]
            firsts.append(len(pieces))
        iovecs = np.zeros((len(pieces), 2), np.int64)
        addresses = iovecs.ctypes.data + iovecs.strides[0] * np.arange(len(pieces))
        self._values: dict[str, Any] = {
            "pieces": np.column_stack([np.array(pieces, np.int64).reshape(-1, 3), addresses]),
            "firsts": np.array(firsts, np.int64),
            "after": np.array(ring.after, np.int64),
            "iovecs": iovecs,
            "state": self._state,
            "stalls": np.zeros(len(ring.names), np.int64),
        }
        self._readers: IOPool | None = None
        self._blocks: list[Array] = []
        self.restart()

    def read_by(self, readers: IOPool) -> None:
        self._readers = readers

    @property
    def reads(self) -> int:
        """Largest number of reads in flight."""
        return len(self._values["pieces"])

    def turn(self, used: int, wanted: int) -> Entry:
        """The wait of one stage: so many of the step's weights have been used; wait until so many
        have arrived."""
        assert self._readers
        values = {"readers": self._readers.address, "used": used, "wanted": wanted}
        self._blocks.append(pack_words(TURN, self._values | values))
        return turn, self._blocks[-1]

    def restart(self) -> None:
        """Forget all requests; the next step is the first, and readers are idle."""
        self._state[:] = -1
        self._state[ASKED] = 0

    def stalls(self) -> dict[str, float]:
        """Seconds that steps have waited for each weight."""
        seconds = 1e-9 * self._values["stalls"]
        return dict(zip(self.names, seconds.tolist(), strict=True))
