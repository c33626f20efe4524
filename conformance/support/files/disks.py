"""Failing disks: a scripted preadv in place of the C library's."""

import ctypes
import errno
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

LIBC = ctypes.CDLL(None, use_errno=True)
PREADV = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, use_errno=True
)
READ = PREADV(("preadv", LIBC))
Answer = Callable[[int, int], int | None]  # of (offset, bytes wanted)
LASTING = {  # answers that are faults, and the error's text with the byte
    "EIO": (-errno.EIO, "cannot be read at byte {}: input/output error"),
    "ENXIO": (-errno.ENXIO, "cannot be read at byte {}: no such device or address"),
    "nothing": (0, "it was cut short while it was read, at byte {}"),
}


class Disk:
    """Answers a call with `answer`: None reads, n >= 0 reads at most n bytes and corrupts the rest,
    -n is errno n.

    It is called with a lock held, so answers may count. `calls` records the calls as (offset, bytes
    wanted, answer).
    """

    def __init__(self, answer: Answer) -> None:
        self.answer, self.calls = answer, []
        self._lock = threading.Lock()
        self._function = PREADV(self._preadv)
        self.address = ctypes.cast(self._function, ctypes.c_void_p).value

    def _preadv(self, fd: int, iovecs: int, count: int, offset: int) -> int:
        pairs = np.ctypeslib.as_array((ctypes.c_int64 * (2 * count)).from_address(iovecs))
        wanted = int(pairs[1::2].sum())
        with self._lock:
            answer = self.answer(offset, wanted)
            self.calls.append((offset, wanted, answer))
        if answer is not None and answer < 0:
            ctypes.set_errno(-answer)
            return -1
        read = int(READ(fd, iovecs, count, offset))
        if answer is None or answer >= read:
            return read
        left = answer
        for address, size in pairs.reshape(-1, 2).tolist():
            kept = min(size, left)
            ctypes.memset(address + kept, 0xEE, size - kept)
            left -= kept
        return answer


def healthy(offset: int, n_bytes: int) -> None:
    """Reads everything."""


def in_turn(answers: Sequence[int | None]) -> Answer:
    """These answers, one for each call, then healthy."""
    left = iter(answers)
    return lambda *_: next(left, None)


def after(calls: int, answer: int) -> Answer:
    """Healthy for `calls` calls, then the same answer to every other."""
    left = iter(range(calls))
    return lambda *_: None if next(left, None) is not None else answer


def slow(bytes_a_second: float) -> Answer:
    """A single disk arm: one call at a time, each taking time in proportion to its bytes."""

    def answer(offset: int, n_bytes: int) -> None:
        time.sleep(n_bytes / bytes_a_second)

    return answer
