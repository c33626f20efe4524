"""A team of persistent threads that runs programs: lists of (share address, block address).

Every thread runs its share of each entry and meets the others at a barrier, all in compiled code
without the interpreter's lock. Between programs workers spin, then yield the core, then park
in Python until the next one. Thread 0 is the caller.
"""

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.atomics import atomic_add, atomic_load, call_share, pause, word_at, yield_core
from kernels.cpu.share import Share, Words, arguments, pack_words, share

# words of `sync`, each on a cache line of its own
ARRIVED, MET, POSTED, LEAVING = 0, 16, 32, 48
SPINS, IDLE_YIELDS = 50, 20_000  # few spins: a machine with fewer cores than threads must go on

MOST_THREADS = 256
SIGNATURE = "control: u64[words], sync: i32[lines] -> out: i32[lines]"


@njit
def wait_past(sync, index, seen, patience):
    """Spin, then yield, until sync[index] differs from `seen`; False after so many yields."""
    spins = 0
    while atomic_load(sync, index) == seen:
        spins += 1
        if spins < SPINS:
            pause()
        elif patience > 0 and spins > SPINS + patience:
            return False
        else:
            yield_core()
    return True


@njit
def barrier(sync, n_threads):
    """The last to arrive opens it for all; everything written before is seen after."""
    met = atomic_load(sync, MET)
    if atomic_add(sync, ARRIVED, np.int32(1)) == n_threads - 1:
        atomic_add(sync, ARRIVED, np.int32(-n_threads))
        atomic_add(sync, MET, np.int32(1))
    else:
        wait_past(sync, MET, met, 0)


@njit
def run_entries(program, entries, sync, thread, n_threads):
    for i in range(np.int64(entries)):
        call_share(word_at(program, 2 * i), word_at(program, 2 * i + 1), thread, n_threads)
        if n_threads > 1:
            barrier(sync, n_threads)


@share(SIGNATURE)
def post(block, thread, n_threads):
    """Let the workers see control's program."""
    _, sync, _ = arguments(block, SIGNATURE)
    atomic_add(sync, POSTED, np.int32(1))


@share(SIGNATURE)
def lead(block, thread, n_threads):
    """Run thread 0's part of control's program."""
    control, sync, _ = arguments(block, SIGNATURE)
    run_entries(control[0], control[1], sync, thread, n_threads)


@share(SIGNATURE)
def follow(block, thread, n_threads):
    """Run posted programs until none came for a while or the team is leaving.

    control[2 + thread] is the number of the last program this thread has run.
    """
    control, sync, _ = arguments(block, SIGNATURE)
    while wait_past(sync, POSTED, np.int32(control[2 + thread]), IDLE_YIELDS):
        if atomic_load(sync, LEAVING) != 0:
            return
        control[2 + thread] += np.uint64(1)
        run_entries(control[0], control[1], sync, thread, n_threads)


class Program:
    """Entries ready to run: (share, block) pairs. Blocks and what they point at stay alive."""

    def __init__(self, entries: Sequence[tuple[Share, Words]]) -> None:
        self.blocks = [block for _, block in entries]
        pairs = [(share.address, block.ctypes.data) for share, block in entries]
        self.words = np.array(pairs, np.uint64).reshape(-1, 2)


class Team:
    """`n_threads` threads, the caller being one; a context manager that lets them go."""

    def __init__(self, n_threads: int) -> None:
        if not 1 <= n_threads <= MOST_THREADS:
            raise ValueError(f"threads: want 1 to {MOST_THREADS}, got {n_threads}")
        self.n_threads = n_threads
        self._process = os.getpid()
        self._sync = np.zeros(64, np.int32)
        self._control = np.zeros(2 + n_threads, np.uint64)
        values: dict[str, Any] = {"control": self._control, "sync": self._sync, "out": self._sync}
        self._block = pack_words(SIGNATURE, values)
        for part in (post, lead, follow):
            part.compile()  # before any thread needs it
        self._state = _State(threading.Condition(), self._sync, self._control, self._block)
        self._running = threading.Lock()
        threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, _leave, self._state, threads)
        for i in range(1, n_threads):
            arguments = (self._state, i, n_threads)
            thread = threading.Thread(target=_worker, args=arguments, daemon=True)
            thread.start()
            threads.append(thread)

    def run(self, program: Program) -> None:
        """Run every entry, on all threads; returns when all is done."""
        if not self._finalizer.alive:
            raise RuntimeError("this team of threads has been closed")
        if os.getpid() != self._process:
            raise RuntimeError("a team of threads does not survive fork: load the engine again")
        if not len(program.words):
            return  # without a barrier a slow worker might run what follows twice
        if not self._running.acquire(blocking=False):
            raise RuntimeError("this team of threads is running another program")
        try:
            self._control[0], self._control[1] = program.words.ctypes.data, len(program.words)
            post(self._block)
            if self._state.sleepers:  # read after posting: whoever sleeps later has seen the post
                self._state.wake()
            lead(self._block, 0, self.n_threads)
        finally:
            self._running.release()

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(slots=True)
class _State:
    """What workers share with the team, without keeping the team itself alive."""

    parked: threading.Condition
    sync: Any
    control: Any
    block: Words
    sleepers: int = 0

    def wake(self) -> None:
        with self.parked:
            self.parked.notify_all()


def _worker(state: _State, thread: int, n_threads: int) -> None:
    while not state.sync[LEAVING]:
        follow(state.block, thread, n_threads)
        with state.parked:
            state.sleepers += 1
            while (
                state.sync[POSTED] == np.int32(state.control[2 + thread])
                and not state.sync[LEAVING]
            ):
                state.parked.wait()
            state.sleepers -= 1


def _leave(state: _State, threads: list[threading.Thread]) -> None:
    state.sync[LEAVING] = 1
    state.sync[POSTED] += 1
    state.wake()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
