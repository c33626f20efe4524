"""Memory that the system takes back."""

import ctypes
import mmap
import sys

import numpy as np

from reference.op import Array


def release(rows: Array, numbers: Array) -> None:
    """Let pages go that hold nothing but rows of these numbers, in any order, of uint8 [rows,
    bytes] in the process's own memory: until they are written again they read as zeros and take no
    memory. Where the system is not Linux's nothing is done."""
    if not len(numbers) or sys.platform != "linux":
        return
    numbers = np.sort(numbers)
    ends = np.flatnonzero(np.diff(numbers) > 1)
    firsts, lasts = numbers[[0, *ends + 1]], numbers[[*ends, -1]]
    page, size, start = mmap.PAGESIZE, rows.shape[1], rows.ctypes.data
    advise = ctypes.CDLL(None).madvise
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        begin = -(-(start + first * size) // page) * page
        end = (start + (last + 1) * size) // page * page
        if begin < end:
            advise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
