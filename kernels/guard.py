"""Arrays between inaccessible pages: a stray read or write crashes the process, and writes into the
padding within an array's own pages are detected."""

import ctypes
import math
import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
PAGE = mmap.PAGESIZE
PROT_NONE, PROT_READ, PROT_WRITE = 0, 1, 2  # flags of mprotect
MPROTECT = getattr(ctypes.CDLL(None), "mprotect", None)
if MPROTECT:
    MPROTECT.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
AT_END = -1  # a place: as near to the end of its pages as the alignment allows


def placed(size: int, place: int, boundary: int) -> tuple[int, int]:
    """Where an array of so many bytes begins in pages of its own, `place` bytes into them or AT_END
    and aligned to `boundary`, and the size of these pages."""
    begin = -(-max(place, 0) // boundary) * boundary
    inside = -(-max(begin + size, 1) // PAGE) * PAGE
    return ((inside - size) // boundary * boundary if place == AT_END else begin), inside


def poison(array: Array, rng: np.random.Generator, ordinary: bool = False) -> None:
    """Fill an array with garbage: random NaN payloads, or `ordinary` numbers as earlier nodes
    leave, or random integers."""
    if ordinary and array.dtype.kind == "f":
        array[...] = rng.standard_normal(array.shape, np.float32)
        return
    flat = array.reshape(-1).view(np.uint8)
    flat[:] = np.frombuffer(rng.bytes(flat.size), np.uint8)
    if array.dtype.kind == "f":
        words = flat.view(f"u{array.itemsize}")
        words |= words.dtype.type({4: 0x7FC00000, 8: 0x7FF8000000000000}[array.itemsize])


class Guarded:
    """An array `place` bytes into its first page, or AT_END, with random padding around it.

    It is aligned to `boundary` bytes, by default to its element size. Without mprotect only the
    padding guards it.
    """

    def __init__(
        self, dims: tuple[int, ...], dtype: Any, place: int, rng: np.random.Generator,
        boundary: int = 0,
    ) -> None:  # fmt: skip
        kind = np.dtype(dtype)
        boundary, size = boundary or kind.itemsize, math.prod(dims) * kind.itemsize
        begin, self._inside = placed(size, place, boundary)
        self._memory = mmap.mmap(-1, self._inside + 2 * PAGE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._protect(0, PAGE, PROT_NONE)
        self._protect(PAGE + self._inside, PAGE, PROT_NONE)
        within = np.frombuffer(self._memory, np.uint8, self._inside, PAGE)
        padding = rng.bytes(self._inside - size)
        self._margins = within[:begin], within[begin + size :]
        self._before = padding[:begin], padding[begin:]
        for margin, before in zip(self._margins, self._before, strict=True):
            margin[:] = np.frombuffer(before, np.uint8)
        self._rows: Array = np.arange(0)  # that may be other than zero, if not all are
        self.array: Array = within[begin : begin + size].view(kind).reshape(dims)

    def _protect(self, begin: int, size: int, access: int) -> None:
        if MPROTECT:
            MPROTECT(self._address + begin, size, access)

    def put(self, array: Array, rows: Array | None = None) -> None:
        """Copy an array of the same shape here and make it read-only. With `rows`, only these: the
        others are zero in both."""
        target = self.writable()
        if rows is None or len(rows) == len(array):
            target[...] = array
        else:
            target[self._rows] = 0
            target[rows], self._rows = array[rows], rows
        self.lock()

    def writable(self) -> Array:
        """The array, writable until it is locked again."""
        self._protect(PAGE, self._inside, PROT_READ | PROT_WRITE)
        return self.array

    def lock(self) -> None:
        """Make the array read-only again."""
        self._protect(PAGE, self._inside, PROT_READ)

    def poison(self, rng: np.random.Generator, ordinary: bool = False) -> None:
        """Fill a writable array with garbage, as `poison` does."""
        poison(self.array, rng, ordinary)

    @property
    def intact(self) -> bool:
        """Whether the padding is unchanged."""
        margins = zip(self._margins, self._before, strict=True)
        return all(margin.tobytes() == before for margin, before in margins)


def at_page_end(array: Array) -> Array:
    """A copy whose last byte lies just before an inaccessible page."""
    guarded = Guarded(array.shape, array.dtype, AT_END, np.random.default_rng(0))
    guarded.array[...] = array
    return guarded.array
