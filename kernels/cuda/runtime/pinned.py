"""Pinned host memory for asynchronous copies, through CuPy."""

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from reference.op import Array

PIECE = 256 << 10  # bytes
PIECES = 32  # a step writes a few, and the host is one or two steps ahead of the GPU


class Pinned:
    """Staging buffers for copies to a GPU on a `stream`, used in rotation: each is rewritten once
    its copy is done. `copy(kind, target, source, size)` enqueues a copy."""

    def __init__(self, cupy: Any, stream: Any, copy: Callable[[str, int, int, int], None]) -> None:
        self._cuda, self._stream, self._copy = cupy.cuda, stream, copy
        self._memory = self._cuda.alloc_pinned_memory(PIECE * PIECES)
        self._over = [self._cuda.Event(disable_timing=True) for _ in range(PIECES)]
        self._turn = 0

    def write(self, target: int, array: Array) -> None:
        """Copy a contiguous array to GPU memory; the array may change afterwards."""
        for begin, size in _pieces(array.nbytes):
            over, place = self._over[self._turn], self._memory.ptr + self._turn * PIECE
            over.synchronize()
            ctypes.memmove(place, array.ctypes.data + begin, size)
            self._copy("HostToDevice", target + begin, place, size)
            over.record(self._stream)
            self._turn = (self._turn + 1) % PIECES

    def ask(self, source: int, size: int) -> Callable[[], Array]:
        """Copy bytes of GPU memory when all earlier work on the stream is done; the returned object
        waits for them. It may be dropped without waiting: the next copy comes after this one."""
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
    """Begins and sizes of pieces."""
    return ((begin, min(PIECE, size - begin)) for begin in range(0, size, PIECE))
