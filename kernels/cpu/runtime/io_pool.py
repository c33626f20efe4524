"""A pool of threads that read from files in parallel, without the interpreter's lock.

A disk serves many requests at once or few per second. The code that the threads run, and that
compiled code calls to post requests and to wait for them, is in io_ring.py; here they are started,
called from Python, and ended.
"""

import ctypes
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.cpu.formats.packing import aligned
from kernels.cpu.runtime import io_ring as r
from kernels.cpu.runtime.share import Share, Words, pack_words

Array = np.ndarray[Any, np.dtype[Any]]

MOST_READERS, MOST_THREADS = 256, 256
SHARES = (r.serve, r.leave, r.empty, r.post_one, r.wait_one)


@dataclass(frozen=True, slots=True)
class File:
    """An open file to read from.

    Without a page cache (O_DIRECT), reads begin and end on multiples of `alignment` bytes, in the
    file and in memory. Pages are `dropped` from the page cache after reading if wanted.
    """

    name: str
    fd: int
    alignment: int = 1
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Statistics:
    """Since the readers were created: read calls, their bytes, and seconds with at least one in
    flight."""

    reads: int
    bytes: int
    seconds: float


class IOPool:
    """`n_readers` threads that read from these files; a context manager that lets them go.

    `n_threads` is the size of the team whose steps wait for them, `n_counters` how many counters
    there are to wait for, `capacity` how many requests fit the ring before who posts must sleep, a
    power of two. `preadv` is the address of a function to call instead of the C library's.

    address      uint64, what compiled code takes: see io_ring.py
    counters     int32 [n_counters]: requests done since a counter was cleared, modulo 2**32

    One thread at a time posts: Python, or a running step. Raises OSError where the system has no
    such semaphores.
    """

    def __init__(
        self,
        files: Sequence[File],
        n_readers: int = 32,
        n_threads: int = 1,
        n_counters: int = 1,
        capacity: int = 1024,
        preadv: int | None = None,
    ) -> None:
        if not 1 <= n_readers <= MOST_READERS:
            raise ValueError(f"readers: want 1 to {MOST_READERS}, got {n_readers}")
        if not 1 <= n_threads <= MOST_THREADS:
            raise ValueError(f"threads: want 1 to {MOST_THREADS}, got {n_threads}")
        if capacity < 1 or capacity & (capacity - 1):
            raise ValueError(f"capacity: want a power of two, got {capacity}")
        self.files, self.n_readers = tuple(files), n_readers
        self._state = state = _State.of(self.files, n_threads, n_counters, capacity, preadv)
        self.address = state.block.ctypes.data
        self.counters = state.counts[r.CALLERS :]
        self._kept: list[object] = []  # buffers of reads in flight
        self._threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, _leave, state, self._threads)
        for i in range(n_readers):
            arguments = (state, i, n_readers)
            name = f"reader {i}"
            thread = threading.Thread(target=_serve, args=arguments, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def post(self, file: int, offset: int, iovecs: Array, n_bytes: int, counter: int = 0) -> bool:
        """Post a request as compiled code does: see io_ring.py. iovecs int64 [n, 2], from
        `iovecs_of`."""
        return self._post(file, offset, iovecs, n_bytes, r.CALLERS + counter)

    def wait(self, counter: int, wanted: int, thread: int = 0) -> bool:
        """Wait as compiled code does: see io_ring.py."""
        return self._wait(r.CALLERS + counter, wanted, thread)

    def read(self, file: int, offset: int, buffers: Sequence[Array]) -> None:
        """Fill uint8 [size] buffers in order, from an offset in the file. Raises OSError on
        failure."""
        patient = self.patient
        try:
            while not self._read(file, offset, buffers):
                if self.fault:
                    raise OSError(self.fault)
                self.reset()  # for a signal whose handler raised nothing
                self.patient = True
        finally:
            self.patient = patient

    @property
    def fault(self) -> str | None:
        """The error, with its file and offset, or None."""
        control = self._state.control
        if control[r.STOPPED] != r.FAULT:
            return None
        code, file, offset = (int(control[word]) for word in (r.CODE, r.FILE, r.OFFSET))
        name = self.files[file].name
        if code == r.CUT_SHORT:
            return f"{name}: it was cut short while it was read, at byte {offset}"
        return f"{name}: cannot be read at byte {offset}: {os.strerror(code).lower()}"

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended a wait: requests posted then may never have been read."""
        return bool(self._state.control[r.STOPPED] == r.INTERRUPTED)

    @property
    def patient(self) -> bool:
        """Whether waits continue after a signal; otherwise it ends them, so that its handler can
        run. Retries after a signal should be patient, or repeated signals would prevent
        progress."""
        return bool(self._state.control[r.PATIENT])

    @patient.setter
    def patient(self, patient: bool) -> None:
        self._state.control[r.PATIENT] = patient

    def reset(self) -> None:
        """Wait for reads in flight, skip posted requests, clear faults and interrupts, and set all
        counters to 0. No step may be running."""
        state = self._open()
        self._finish()
        state.counts[r.OWN :] = 0
        state.control[r.FAULTY] = 0
        state.control[r.STOPPED] = r.RUNNING

    @property
    def statistics(self) -> Statistics:
        reads, n_bytes, busy = (int(self._state.control[w]) for w in (r.READS, r.BYTES, r.BUSY))
        if busy < 0:  # a beginning without its end
            busy += time.monotonic_ns()
        return Statistics(reads, n_bytes, busy * 1e-9)

    def close(self) -> None:
        """End the threads, each after its current read; posted requests are dropped."""
        self._finalizer()

    def __enter__(self) -> "IOPool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open(self) -> "_State":
        if not self._finalizer.alive:
            raise RuntimeError("these readers have been closed")
        if os.getpid() != self._state.process:
            raise RuntimeError("readers do not survive fork: load the engine again")
        return self._state

    def _finish(self) -> None:
        """Stop reading, and wait until nothing is in flight."""
        while self._finalizer.alive and not self._state.is_over():
            r.empty(self._state.block)
        if not self._finalizer.alive:  # another thread is closing
            for thread in self._threads:
                thread.join()

    def _read(self, file: int, offset: int, buffers: Sequence[Array]) -> bool:
        state, iovecs, done = self._open(), iovecs_of(buffers), False
        n_bytes, wanted = sum(b.nbytes for b in buffers), int(state.counts[r.OWN]) + 1
        self._kept.append((buffers, iovecs))
        try:
            posted = self._post(file, offset, iovecs, n_bytes, r.OWN)
            done = posted and self._wait(r.OWN, wanted, 0)
        finally:
            if not done:  # the buffers will be the caller's again
                self._finish()
            if state.is_over():
                self._kept.clear()
        return done

    def _post(self, file: int, offset: int, iovecs: Array, n_bytes: int, counter: int) -> bool:
        self._open()
        if not 0 <= file < len(self.files):
            raise ValueError(f"file: want 0 to {len(self.files) - 1}, got {file}")
        words = (file, offset, iovecs.ctypes.data, len(iovecs), n_bytes, counter)
        return self._call(r.post_one, {"request": np.array(words, np.int64)})

    def _wait(self, counter: int, wanted: int, thread: int) -> bool:
        self._open()
        return self._call(r.wait_one, {"counter": counter, "wanted": wanted}, thread)

    def _call(self, part: Share, values: dict[str, Any], thread: int = 0) -> bool:
        done = np.zeros(1, np.int64)
        part(pack_words(part.signature, {"readers": self.address, "done": done} | values), thread)
        return bool(done[0])


def iovecs_of(buffers: Sequence[Array]) -> Array:
    """Addresses and sizes of uint8 [size] buffers, as int64 [n, 2]; they must outlive it."""
    return np.array([(b.ctypes.data, b.nbytes) for b in buffers], np.int64).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class _State:
    """The threads' shared state, which does not keep the pool alive."""

    control: Array
    counts: Array
    semaphores: Array
    block: Words
    alive: object
    process: int

    @classmethod
    def of(
        cls,
        files: Sequence[File],
        n_threads: int,
        n_counters: int,
        capacity: int,
        preadv: int | None,
    ) -> "_State":
        if sys.platform != "linux":
            raise OSError("readers need Linux: this system has no such semaphores or reads")
        libc = ctypes.CDLL(None, use_errno=True)
        for part in SHARES:
            part.compile()  # before any thread needs it
        control, counts = _zeros(r.WORDS, np.int64), _zeros(r.CALLERS + n_counters, np.int32)
        control[r.PREADV] = preadv or ctypes.cast(libc.preadv, ctypes.c_void_p).value
        semaphores = _zeros(r.THREADS + r.SEMAPHORE * n_threads, np.uint8)
        for at in range(0, len(semaphores), r.SEMAPHORE):
            if libc.sem_init(ctypes.c_void_p(semaphores[at:].ctypes.data), 0, 0):
                raise OSError(f"no semaphores: {os.strerror(ctypes.get_errno()).lower()}")
        values = {
            "control": control,
            "counts": counts,
            "requests": np.zeros((capacity, r.REQUEST), np.int64),
            "files": np.array([(f.fd, f.alignment, f.dropped) for f in files], np.int64),
            "waiting": _zeros(n_threads, np.int64),
            "semaphores": semaphores,
        }
        values["files"] = values["files"].reshape(-1, r.FILE_WORDS)
        block = pack_words(r.SIGNATURE, values)
        return cls(control, counts, semaphores, block, values, os.getpid())

    def is_over(self) -> bool:
        """Whether everything posted was read or skipped."""
        return bool(np.int32(self.control[r.POSTED] - self.counts[r.OVER]) == 0)


def _zeros(count: int, dtype: type) -> Array:
    """Zeros aligned to a cache line."""
    zeros: Array = aligned(count * np.dtype(dtype).itemsize).view(dtype)
    zeros[:] = 0
    return zeros


def _serve(state: _State, reader: int, n_readers: int) -> None:
    r.serve(state.block, reader, n_readers)


def _leave(state: _State, threads: list[threading.Thread]) -> None:
    r.leave(state.block, 0, len(threads))
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
