"""Raw disk reads without computation, the reference for streaming models."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from engine.offload.direct_file import PAGE, DirectFile
from engine.offload.offload import READERS
from engine.offload.stream import PIECE
from kernels.cpu.formats.packing import aligned
from kernels.cpu.runtime.io_pool import IOPool
from kernels.cpu.runtime.share import pack_words
from kernels.cpu.runtime.streaming import ASKED, LINE, STEP, TURN, turn

MEMORY = 2**26  # bytes of a buffer that is reused: its contents do not matter
CAPACITY = 2**16  # requests in flight

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
