"""Memory of the host that a GPU copies from and to by itself, through CuPy."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from reference.op import Array

PIECE, PIECES = 256 << 10, 32  # a step writes a few, and one or two steps are ahead of the GPU


class Pinned:
    """Pieces that take turns at what goes over to a GPU on a `stream`: each is written to again
    when its copy is over. `copy(kind, target, source, size)` has one made there."""

    def __init__(self, cupy: Any, stream: Any, copy: Callable[[str, int, int, int], None]) -> None:
        self._cuda, self._stream, self._copy = cupy.cuda, stream, copy
        self._memory = self._cuda.alloc_pinned_memory(PIECE * PIECES)
        self._over = [self._cuda.Event(disable_timing=True) for _ in range(PIECES)]
        self._turn = 0

    def write(self, target: int, array: Array) -> None:
        """A contiguous array to the GPU's memory; the array may change afterwards."""
        for begin, size in _pieces(array.nbytes):
            over, place = self._over[self._turn], self._memory.ptr + self._turn * PIECE
            over.synchronize()
            ctypes.memmove(place, array.ctypes.data + begin, size)
            self._copy("HostToDevice", target + begin, place, size)
            over.record(self._stream)
            self._turn = (self._turn + 1) % PIECES

    def ask(self, source: int, size: int) -> Callable[[], Array]:
        """Bytes of the GPU's memory, when all is done that the stream was asked for before; what is
        given waits for them. Whoever never waits may let go: the next copy comes after this one."""
        memory = self._cuda.alloc_pinned_memory(max(size, 1))
        there = self._cuda.Event(disable_timing=True)
        self._copy("DeviceToHost", memory.ptr, source, size)
        there.record(self._stream)

        def wait() -> Array:
            there.synchronize()
            found = np.empty(size, np.uint8)
            ctypes.memmove(found.ctypes.data, memory.ptr, size)
            return found

        return wait


def _pieces(size: int) -> Iterator[tuple[int, int]]:
    """Where each begins, and its bytes."""
    return ((begin, min(PIECE, size - begin)) for begin in range(0, size, PIECE))
