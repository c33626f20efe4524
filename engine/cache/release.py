"""Return memory to the operating system."""

import ctypes
import mmap
import sys

import numpy as np

from reference.op import Array


def release(rows: Array, numbers: Array) -> None:
    """Release pages that contain only rows with these indices, in any order, of uint8 [rows, bytes]
    in process memory: they read as zeros and take no memory until they are written again. Does
    nothing on systems other than Linux."""
    if not len(numbers) or sys.platform != "linux":
        return
    numbers = np.sort(numbers)
    ends = np.flatnonzero(np.diff(numbers) > 1)
    firsts, lasts = numbers[[0, *ends + 1]], numbers[[*ends, -1]]
    page, size, start = mmap.PAGESIZE, rows.shape[1], rows.ctypes.data
    begins = -(-(start + firsts.astype(np.int64) * size) // page) * page
    sizes = (start + (lasts.astype(np.int64) + 1) * size) // page * page - begins
    whole = sizes > 0
    if whole.any():
        advise = ctypes.CDLL(None).madvise
        for begin, length in zip(begins[whole].tolist(), sizes[whole].tolist(), strict=True):
            advise(ctypes.c_void_p(begin), ctypes.c_size_t(length), mmap.MADV_DONTNEED)
