"""Arrays that end where memory does: a read beyond the end takes the process down."""

import ctypes
import mmap
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
PROT_NONE = 0


def at_page_end(array: Array) -> Array:
    """A copy whose last byte lies just before a page that may not be touched.

    Where the system has no mprotect, an ordinary copy.
    """
    mprotect = getattr(ctypes.CDLL(None), "mprotect", None)
    if mprotect is None or not array.nbytes:
        return array.copy()
    page = mmap.PAGESIZE
    whole = -(-array.nbytes // page) * page
    memory = mmap.mmap(-1, whole + page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    if mprotect(ctypes.c_void_p(start + whole), ctypes.c_size_t(page), PROT_NONE):
        return array.copy()
    copy = np.frombuffer(memory, array.dtype, array.size, whole - array.nbytes)
    copy = copy.reshape(array.shape)
    copy[...] = array
    return copy
