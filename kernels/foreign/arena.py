"""Memory shared by the judge and a child: input arrays, which the child may only read, and output
arrays. The padding around each array within its pages is random and is checked for writes."""

import contextlib
import ctypes
import fcntl
import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from kernels.guard import placed
from reference.op import Array

SIZE = 2**33  # bytes of each side; untouched pages take no memory
SEAL_SEAL, SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 1, 2, 4, 16


@dataclass(frozen=True, slots=True)
class Slot:
    """Location of an array: `offset` and `size` are whole pages, `begin` is in bytes from there."""

    offset: int
    size: int
    begin: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def as_list(self) -> list[Any]:
        """The slot as it is sent to the child."""
        return [self.offset, self.size, self.begin, self.dtype.str, list(self.shape)]


class Side:
    """Memory of all inputs or of all outputs. `sealed`: no other process can write there."""

    def __init__(self, readable_only: bool) -> None:
        self.sealed = False
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("arrays", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        os.ftruncate(self.descriptor, SIZE)
        self._map = mmap.mmap(self.descriptor, SIZE)
        if hasattr(fcntl, "F_ADD_SEALS"):
            seals = SEAL_SHRINK | SEAL_GROW | (SEAL_FUTURE_WRITE if readable_only else 0)
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals | SEAL_SEAL)
                self.sealed = readable_only
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._end = 0
        self._margins: list[tuple[str, Array, bytes]] = []

    def close(self) -> None:
        del self._bytes
        self._margins.clear()
        with contextlib.suppress(BufferError):  # freed with the array that references it
            self._map.close()
        os.close(self.descriptor)

    def clear(self) -> None:
        """Drop all slots and return their memory."""
        if self._end > 2**26 and hasattr(os, "MFD_ALLOW_SEALING"):
            libc = ctypes.CDLL(None)
            keep_size_and_punch = 3
            libc.fallocate(
                self.descriptor, keep_size_and_punch, ctypes.c_long(0), ctypes.c_long(self._end)
            )
        self._end = 0
        self._margins.clear()

    def slot(
        self, dims: Sequence[int], dtype: Any, place: int, rng: np.random.Generator, boundary: int
    ) -> Slot:
        """Reserve room for an array `place` bytes into its pages or AT_END, aligned to
        `boundary`."""
        kind = np.dtype(dtype)
        size = prod(dims) * kind.itemsize
        begin, inside = placed(size, place, boundary)
        if self._end + inside > SIZE:
            raise MemoryError(f"arrays of more than {SIZE:,} bytes")
        return self._made(Slot(self._end, inside, begin, kind, tuple(map(int, dims))), rng)

    def _made(self, slot: Slot, rng: np.random.Generator) -> Slot:
        self._end += slot.size
        pages = self._bytes[slot.offset : slot.offset + slot.size]
        for where, margin in (
            ("before", pages[: slot.begin]),
            ("behind", pages[slot.begin + slot.bytes :]),
        ):
            margin[:] = np.frombuffer(rng.bytes(margin.size), np.uint8)
            self._margins.append((where, margin, margin.tobytes()))
        return slot

    def array(self, slot: Slot) -> Array:
        """The judge's view of a slot."""
        begin = slot.offset + slot.begin
        found = self._bytes[begin : begin + slot.bytes]
        return found.view(slot.dtype).reshape(slot.shape)

    def spoilt(self) -> str:
        """Which padding of an array was written to: "before", "behind" or ""."""
        return next((w for w, now, before in self._margins if now.tobytes() != before), "")
