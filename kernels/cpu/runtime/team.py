"""A team of persistent threads that runs programs: lists of shares with their argument blocks.

The work of an entry is split into a part for each thread; a thread that is done with its own takes
parts that nobody has begun. An entry is over when its parts are done, whoever did them: a thread
whose core is taken by another program delays only the part that it is in. All of this is compiled
code without the interpreter's lock. A waiting thread spins, then yields the core, then sleeps; one
that finds that another program took the core for its time slice sleeps at once instead of yielding
again. Workers without a program for a while park in Python until the next one. Thread 0 is the
caller.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from kernels.cpu.isa.atomics import (
    atomic_add,
    atomic_load,
    call_share,
    compare_and_swap,
    pause,
    put_word,
    word_at,
    yield_core,
)
from kernels.cpu.isa.system_calls import nanoseconds, sleep_on, wake_all
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.cores import Pinned, allowed_cores, cores_to_pin
from kernels.cpu.runtime.sequence import Entry
from kernels.cpu.runtime.share import PROTOTYPE, Words, arguments, pack_words, share
from kernels.cpu.runtime.thread_errors import listen, stop_listening

# words of `sync`, each on a cache line of its own; from OWN on one for each thread
STAGE, DONE, LEAVING, PARKED, SLEEPING, OWN = 0, 16, 32, 48, 64, 80
LINE = 16
# of a thread's own: how many of its next waits do not yield, how many they were at first, whether
# it may be reading the words of a program, and the last stage of which its part was begun
WARY, CAUTION, READING, BEGAN = 0, 1, 2, 3

# words of `control`
PROGRAM, SPINS, WANTED, BEGUN, YIELDS = 0, 1, 2, 3, 4
# words of a program, then those of its entries: share, args, whether each part is its thread's
FIRST_STAGE, ENTRIES, HEAD, ENTRY = 0, 1, 2, 3

# For waiters: pauses before the core is yielded, and yields before sleeping; the second of each
# if there are more threads than cores, which would yield to each other.
PAUSES = 20, 0
MOST_YIELDS = 20_000, 20
TURN = 100_000  # nanoseconds: a longer yield gave the core to another program
FEW, MOST = 16, 1000  # waits after that which do not yield
SLEEP = 5_000_000  # nanoseconds, at most

MOST_THREADS = 256
SIGNATURE = "control: u64[words], sync: i32[lines] -> "


@inner
def spin_past(sync, index, seen, spins):
    """Whether sync[index] differs from `seen` within so many pauses."""
    for _ in range(spins):
        if atomic_load(sync, index) != seen:
            return True
        pause()
    return False


@inner
def wait_past(sync, index, seen, spins, yields, own):
    """Spin, yield, and sleep once, until sync[index] differs from `seen`; returns whether it does.

    `own` is where this thread's words are. After a yield that cost a time slice it sleeps at once
    for some waits, the more the oftener that happens. A sleeper first registers and then checks;
    whoever changes the word then looks for sleepers: one of the two sees the other.
    """
    if spin_past(sync, index, seen, spins):
        return True
    if sync[own + WARY] > 0:
        sync[own + WARY] -= np.int32(1)
    else:
        before = nanoseconds()
        for _ in range(yields):
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
def next_stage(sync):
    """Begin the next stage, and wake whoever sleeps until then."""
    atomic_add(sync, STAGE, np.int32(1))
    if atomic_load(sync, SLEEPING) != 0:
        wake_all(sync, STAGE)


@inner
def take(sync, owner, stage):
    """Claim the owner's part of this stage; returns whether nobody had begun it.

    A word of this stage or of a later one is left alone: this thread has been asleep.
    """
    word = OWN + LINE * owner + BEGAN
    before = atomic_load(sync, word)
    return np.int32(stage - before) > 0 and compare_and_swap(sync, word, before, stage)


@inner
def do_others(share, args, stage, sync, thread, n_threads):
    """Run parts of other threads that nobody has begun; returns how many."""
    done = 0
    for step in range(1, n_threads):
        owner = (thread + step) % n_threads
        if take(sync, owner, stage):
            call_share(share, args, owner, n_threads)
            done += 1
    return done


@inner
def ended(sync, done, n_threads):
    """Count finished parts; returns whether they were the last of the stage, and the next
    begins."""
    if done == 0 or atomic_add(sync, DONE, np.int32(done)) + done < n_threads:
        return False
    atomic_add(sync, DONE, np.int32(-n_threads))
    next_stage(sync)
    return True


@inner
def run_program(control, sync, thread, n_threads):
    """Take part in the program until it is over, or in none; returns the stage after its last.

    A thread does its own part, and after a moment those of others. The program's words that it
    reads are those of the stage or of a later program, since a stage begins after everything about
    it was written; parts can be taken in the stage itself alone.
    """
    own, spins, yields = OWN + LINE * thread, np.int64(control[SPINS]), np.int64(control[YIELDS])
    while True:
        stage = atomic_load(sync, STAGE)
        program = atomic_load(control, PROGRAM)
        i = np.int64(np.int32(stage - np.int32(np.int64(word_at(program, FIRST_STAGE)))))
        if i < 0 or i >= np.int64(word_at(program, ENTRIES)):
            return stage
        entry = program + np.uint64(8 * (HEAD + ENTRY * i))
        share, args, by_all = word_at(entry, 0), word_at(entry, 1), word_at(entry, 2)
        done = 0
        if take(sync, thread, stage):
            call_share(share, args, thread, n_threads)
            done = 1
        if ended(sync, done, n_threads) or spin_past(sync, STAGE, stage, spins):
            continue
        done = 0 if by_all else do_others(share, args, stage, sync, thread, n_threads)
        if not ended(sync, done, n_threads):
            while not wait_past(sync, STAGE, stage, spins, yields, own):
                pass


@share(SIGNATURE)
def lead(args, thread, n_threads):
    """Begin the program if it is wanted, and take part in it until it is over; but if any worker is
    parked, return for the caller to wake it and to lead again."""
    control, sync = arguments(args, SIGNATURE)
    if not control[BEGUN]:
        first = atomic_load(sync, STAGE) + np.int32(1)
        put_word(control[PROGRAM], FIRST_STAGE, np.uint64(np.int64(first)))
        control[BEGUN] = 1
        next_stage(sync)
        if atomic_load(sync, PARKED) != 0:
            return
    run_program(control, sync, thread, n_threads)
    control[WANTED] = control[BEGUN] = 0


@share(SIGNATURE)
def follow(args, thread, n_threads):
    """Take part in programs until none came for a while or the team is closing.

    Threads outside this function count as parked. A worker on its way out first counts itself and
    then looks for a program, a leader first begins one and then counts: one of the two sees the
    other.
    """
    control, sync = arguments(args, SIGNATURE)
    atomic_add(sync, PARKED, np.int32(-1))
    own, spins, yields = OWN + LINE * thread, np.int64(control[SPINS]), np.int64(control[YIELDS])
    while True:
        atomic_add(sync, own + READING, np.int32(1))
        stage = run_program(control, sync, thread, n_threads)
        atomic_add(sync, own + READING, np.int32(-1))
        if atomic_load(sync, LEAVING) != 0 or not wait_past(sync, STAGE, stage, spins, yields, own):
            break
    atomic_add(sync, PARKED, np.int32(1))


class Program:
    """Entries ready to run: pairs of a share and its argument buffer, each begun when all before it
    are done. Buffers and what is `alive` with them stay.

    `by_all` tells, for all entries or for each, whether every thread must do its own part: it waits
    there, for example, or reports something about itself.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        alive: object = None,
        by_all: bool | Sequence[bool] = False,
    ) -> None:
        owned = [by_all] * len(entries) if isinstance(by_all, bool) else by_all
        pairs = zip(entries, owned, strict=True)
        rows = [(share.address, args.ctypes.data, own) for (share, args), own in pairs]
        self.words = np.array([0, len(rows), *chain(*rows)], np.uint64)
        self._alive = [args for _, args in entries], alive
        self.entries = len(rows)


class Team:
    """`n_threads` threads, the caller being one; a context manager that ends them. With `pinned`
    each thread keeps to a core of its own: workers always, the caller while it runs a program. If
    it is not `alone` with its cores, waiting threads soon sleep."""

    def __init__(self, n_threads: int, pinned: bool = False, alone: bool = True) -> None:
        if not 1 <= n_threads <= MOST_THREADS:
            raise ValueError(f"threads: want 1 to {MOST_THREADS}, got {n_threads}")
        cores = cores_to_pin(n_threads) if pinned else []
        seats: list[AbstractContextManager[None]] = [Pinned(core) for core in cores]
        seats = seats or [nullcontext()] * n_threads
        self.n_threads, self._seat = n_threads, seats[0]
        self._state = state = _State.of(n_threads, alone)
        for part in (lead, follow):
            part.compile()  # before any thread needs it
        self._lead = partial(PROTOTYPE(lead.address), state.block.ctypes.data, 0, n_threads)
        self._program, self._wanted = _words(state.control, ctypes.c_uint64, PROGRAM, WANTED)
        self._running = threading.Lock()
        self._last: Program | None = None
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

        An exception of a share, on any thread, is raised here then: the first if there are more. So
        is an interrupt (Ctrl-C), and the team stays usable.
        """
        if not self._finalizer.alive:
            raise RuntimeError("this team of threads has been closed")
        if os.getpid() != self._state.process:
            raise RuntimeError("a team of threads does not survive fork: load the engine again")
        if self._running.locked():
            raise RuntimeError("this team of threads is running another program")
        with self._running, self._seat:
            raised = self._state.raised
            listen(raised)
            try:
                self._finish()  # left by two interrupts in a row
                raised.clear()
                if program is not self._last:
                    self._program.value = self._state.copied(program)
                    self._last = program
                self._wanted.value = 1
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
        """Run the wanted program, if it was not run."""
        if self._wanted.value:
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
    """State shared with workers, which does not keep the team alive."""

    sync: Any
    control: Any
    block: Words
    gates: list[Any]  # a worker's lock: it parks by acquiring it, and is woken by its release
    raised: list[BaseException] = field(default_factory=list)
    read: list[Any] = field(default_factory=list)  # copies of programs, the current one last
    process: int = field(default_factory=os.getpid)

    @classmethod
    def of(cls, n_threads: int, alone: bool) -> "_State":
        sync, control = np.zeros(OWN + LINE * n_threads, np.int32), np.zeros(LINE, np.uint64)
        sync[PARKED] = n_threads - 1
        crowded = not alone or n_threads > len(allowed_cores())
        control[SPINS], control[YIELDS] = PAUSES[crowded], MOST_YIELDS[crowded]
        arrays = {"control": control, "sync": sync}
        gates = [threading.Lock() for _ in range(n_threads)]
        state = cls(sync, control, pack_words(SIGNATURE, arrays), gates)
        control[PROGRAM] = state.copied(Program([]))
        return state

    def copied(self, program: Program) -> int:
        """The address of a copy of the program's words, whose entries the team's stages number.
        Earlier copies are freed if no worker reads any."""
        if not self.sync[OWN + READING :: LINE].any():
            del self.read[:-1]
        words = program.words.copy()
        words[FIRST_STAGE] = (np.int64(self.sync[STAGE]) + 1).view(np.uint64)
        self.read.append(words)
        return int(words.ctypes.data)

    def wake(self) -> None:
        """Open every gate; a gate that was open lets its worker look once more for nothing."""
        for gate in self.gates:
            if gate.locked():
                gate.release()

    def nothing_to_do(self) -> bool:
        return not self.control[WANTED] and not self.sync[LEAVING]


def _worker(state: _State, thread: int, n_threads: int) -> None:
    listen(state.raised)
    try:
        while not state.sync[LEAVING]:
            follow(state.block, thread, n_threads)
            while state.nothing_to_do():
                state.gates[thread].acquire()
    finally:
        stop_listening()


def _leave(state: _State, threads: list[threading.Thread]) -> None:
    if os.getpid() != state.process:
        return  # a fork has no workers
    state.sync[LEAVING] = 1
    state.control[PROGRAM] = state.copied(Program([]))
    state.control[BEGUN] = 0
    lead(state.block, 0, len(threads) + 1)  # an empty program, which ends everybody's sleep
    state.wake()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
