"""The system's page cache."""

import ctypes
import mmap

import numpy as np


def pages_kept(path):
    """The number of a file's pages in the page cache."""
    with (
        path.open("rb") as source,
        mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_COPY) as mapped,
    ):
        view = np.frombuffer(mapped, np.uint8)
        pages = np.zeros(-(-view.size // mmap.PAGESIZE), np.uint8)
        where, out = (ctypes.c_void_p(array.ctypes.data) for array in (view, pages))
        assert ctypes.CDLL(None).mincore(where, ctypes.c_size_t(view.size), out) == 0
        del view
    return int((pages & 1).sum())
