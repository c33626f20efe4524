"""A team of persistent threads that runs programs: lists of (share address, block address).

Every thread runs its share of each entry and meets the others at a barrier, all in compiled code
without the interpreter's lock. Who waits spins, then yields the core, then sleeps; who finds that
another program took the core for its turn does not yield to it again and again, but sleeps at once.
Workers that nothing came for park in Python until the next program. Thread 0 is the caller.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from kernels.cpu.atomics import atomic_add, atomic_load, call_share, pause, word_at, yield_core
from kernels.cpu.closures import inner
from kernels.cpu.cores import Pinned, allowed_cores, cores_to_pin
from kernels.cpu.raised import listen, stop_listening
from kernels.cpu.sequence import Entry
from kernels.cpu.share import PROTOTYPE, Words, arguments, pack_words, share
from kernels.cpu.system_calls import nanoseconds, sleep_on, wake_all

# words of `sync`, each on a cache line of its own; from RAN on one for each thread
ARRIVED, MET, POSTED, LEAVING, PARKED, SLEEPING, RAN = 0, 16, 32, 48, 64, 80, 96
LINE = 16
# beside RAN: how many of a thread's next waits do not yield, and how many they were at first
WARY, CAUTION = 1, 2

# words of `control`
PROGRAM, ENTRIES, SPINS = 0, 1, 2

PAUSES = 20  # of who waits, before the core is yielded, if each thread has one
YIELDS = 20_000  # before it sleeps
TURN = 100_000  # nanoseconds: a longer yield gave the core to another program
FEW, MOST = 16, 1000  # waits after that which do not yield
SLEEP = 5_000_000  # nanoseconds, at most

MOST_THREADS = 256
SIGNATURE = "control: u64[words], sync: i32[lines] -> "


@inner
def wait_past(sync, index, seen, spins, own):
    """Spin, yield, and sleep once, until sync[index] differs from `seen`; whether it does.

    `own` is where this thread's words are. After a yield that cost a turn it sleeps at once for
    some waits: the more, the oftener that happens. Who goes to sleep counts first and looks then;
    who changes the word looks for sleepers afterwards: one of the two sees the other.
    """
    for _ in range(spins):
        if atomic_load(sync, index) != seen:
            return True
        pause()
    if sync[own + WARY] > 0:
        sync[own + WARY] -= np.int32(1)
    else:
        before = nanoseconds()
        for _ in range(YIELDS):
            if atomic_load(sync, index) != seen:
                sync[own + CAUTION] //= np.int32(2)
                return True
            yield_core()
            now = nanoseconds()
            if now - before > TURN:
                sync[own + CAUTION] = min(2 * sync[own + CAUTION] + FEW, MOST)
                sync[own + WARY] = sync[own + CAUTION]
                break
            before = now
    if atomic_load(sync, index) == seen:
        atomic_add(sync, SLEEPING, np.int32(1))
        sleep_on(sync, index, seen, SLEEP)
        atomic_add(sync, SLEEPING, np.int32(-1))
    return atomic_load(sync, index) != seen


@inner
def move_on(sync, index):
    """Count sync[index] up, and wake whoever sleeps until then."""
    atomic_add(sync, index, np.int32(1))
    if atomic_load(sync, SLEEPING) != 0:
        wake_all(sync, index)


@inner
def barrier(sync, spins, thread, n_threads):
    """The last to arrive opens it for all; everything written before is seen after."""
    met = atomic_load(sync, MET)
    if atomic_add(sync, ARRIVED, np.int32(1)) == n_threads - 1:
        atomic_add(sync, ARRIVED, np.int32(-n_threads))
        move_on(sync, MET)
    else:
        while not wait_past(sync, MET, met, spins, RAN + LINE * thread):
            pass


@inner
def run_program(control, sync, thread, n_threads):
    """Run this thread's part of control's program, and count it as run."""
    program, spins = control[PROGRAM], np.int64(control[SPINS])
    for i in range(np.int64(control[ENTRIES])):
        call_share(word_at(program, 2 * i), word_at(program, 2 * i + 1), thread, n_threads)
        if n_threads > 1:
            barrier(sync, spins, thread, n_threads)
    sync[RAN + LINE * thread] += np.int32(1)


@share(SIGNATURE)
def lead(block, thread, n_threads):
    """Let the workers see control's program and run thread 0's part of it; but if any of them is
    parked, return for the caller to wake them and to lead again."""
    control, sync = arguments(block, SIGNATURE)
    if atomic_load(sync, POSTED) == sync[RAN]:
        move_on(sync, POSTED)
        if atomic_load(sync, PARKED) != 0:
            return
    run_program(control, sync, thread, n_threads)


@share(SIGNATURE)
def follow(block, thread, n_threads):
    """Run posted programs until none came for a while or the team is leaving.

    Whoever is not in here counts as parked. A worker on its way out counts first and looks for a
    post then, a leader posts first and counts then: one of the two sees the other.
    """
    control, sync = arguments(block, SIGNATURE)
    atomic_add(sync, PARKED, np.int32(-1))
    seen, spins = RAN + LINE * thread, np.int64(control[SPINS])
    while wait_past(sync, POSTED, sync[seen], spins, seen):
        if atomic_load(sync, LEAVING) != 0:
            break
        run_program(control, sync, thread, n_threads)
    atomic_add(sync, PARKED, np.int32(1))


class Program:
    """Entries ready to run: (share, block) pairs. Blocks and what is `alive` with them stay."""

    def __init__(self, entries: Sequence[Entry], alive: object = None) -> None:
        pairs = [(share.address, block.ctypes.data) for share, block in entries]
        self.words = np.array(pairs, np.uint64).reshape(-1, 2)
        self._alive = [block for _, block in entries], alive
        self.address, self.entries = self.words.ctypes.data, len(pairs)


class Team:
    """`n_threads` threads, the caller being one; a context manager that lets them go.

    With `pinned` each thread keeps to a core of its own: workers always, the caller while it runs a
    program.
    """

    def __init__(self, n_threads: int, pinned: bool = False) -> None:
        if not 1 <= n_threads <= MOST_THREADS:
            raise ValueError(f"threads: want 1 to {MOST_THREADS}, got {n_threads}")
        cores = cores_to_pin(n_threads) if pinned else []
        seats: list[AbstractContextManager[None]] = [Pinned(core) for core in cores]
        seats = seats or [nullcontext()] * n_threads
        self.n_threads, self._seat = n_threads, seats[0]
        self._state = state = _State.of(n_threads)
        for part in (lead, follow):
            part.compile()  # before any thread needs it
        self._lead = partial(PROTOTYPE(lead.address), state.block.ctypes.data, 0, n_threads)
        self._program, self._entries = _words(state.control, ctypes.c_uint64, PROGRAM, ENTRIES)
        self._posted, self._ran = _words(state.sync, ctypes.c_int32, POSTED, RAN)
        self._running = threading.Lock()
        self._last: Program | None = None  # its arrays stay while a worker might be in it
        threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, _leave, state, threads)
        for i in range(1, n_threads):
            arguments = (state, i, n_threads)
            name = f"team thread {i}"
            thread = threading.Thread(target=_worker, args=arguments, name=name, daemon=True)
            with seats[i]:  # a thread keeps to where it was made
                thread.start()
            threads.append(thread)

    def run(self, program: Program) -> None:
        """Run every entry, on all threads; returns when all is done.

        What a share raises, on whichever thread, is raised here then: the first if there are more.
        So is an interrupt (Ctrl-C), and the team goes on as before.
        """
        if not self._finalizer.alive:
            raise RuntimeError("this team of threads has been closed")
        if os.getpid() != self._state.process:
            raise RuntimeError("a team of threads does not survive fork: load the engine again")
        if not program.entries:
            return  # without a barrier a slow worker might run what follows twice
        if self._running.locked():
            raise RuntimeError("this team of threads is running another program")
        with self._running, self._seat:
            raised = self._state.raised
            listen(raised)
            try:
                self._finish()  # what two interrupts in a row have left
                raised.clear()
                self._last = program
                self._program.value, self._entries.value = program.address, program.entries
                self._lead()
                self._finish()
            except BaseException:  # a signal's handler, between calls, while workers wait for us
                self._finish()
                raise
            finally:
                stop_listening()
            if raised:
                raise raised.pop(0)

    def _finish(self) -> None:
        """Run what was posted, if it was not run."""
        if self._posted.value != self._ran.value:
            self._state.wake()
            self._lead()

    def close(self) -> None:
        self._finalizer()
        self._last = None

    def __enter__(self) -> "Team":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _words(array: Any, kind: Any, *positions: int) -> list[Any]:
    """Words of an array as ctypes' scalars, which Python reads and writes faster than NumPy's."""
    return [kind.from_buffer(array, array.itemsize * position) for position in positions]


@dataclass(frozen=True, slots=True)
class _State:
    """What workers share with the team, without keeping the team itself alive."""

    sync: Any
    control: Any
    block: Words
    gates: list[Any]  # a worker's lock: it parks by acquiring it, and is woken by its release
    raised: list[BaseException] = field(default_factory=list)
    process: int = field(default_factory=os.getpid)

    @classmethod
    def of(cls, n_threads: int) -> "_State":
        sync, control = np.zeros(RAN + LINE * n_threads, np.int32), np.zeros(LINE, np.uint64)
        sync[PARKED] = n_threads - 1
        control[SPINS] = PAUSES if n_threads <= len(allowed_cores()) else 0
        block = pack_words(SIGNATURE, {"control": control, "sync": sync})
        return cls(sync, control, block, [threading.Lock() for _ in range(n_threads)])

    def wake(self) -> None:
        """Open every gate; one that was open lets its worker look once more for nothing."""
        for gate in self.gates:
            if gate.locked():
                gate.release()

    def nothing_to_do(self, thread: int) -> bool:
        posted, ran = self.sync[POSTED], self.sync[RAN + LINE * thread]
        return bool(posted == ran and not self.sync[LEAVING])


def _worker(state: _State, thread: int, n_threads: int) -> None:
    listen(state.raised)
    try:
        while not state.sync[LEAVING]:
            follow(state.block, thread, n_threads)
            while state.nothing_to_do(thread):
                state.gates[thread].acquire()
    finally:
        stop_listening()


def _leave(state: _State, threads: list[threading.Thread]) -> None:
    if os.getpid() != state.process:
        return  # a fork has no workers
    state.sync[LEAVING] = 1
    state.sync[POSTED] += 1  # who sleeps until then looks after SLEEP at the latest
    state.wake()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
