"""Shares for tests of the thread team: they fail, sleep, take long, or count the order of
threads."""

import time

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.testing import assert_array_equal

from kernels.cpu.isa.atomics import yield_core
from kernels.cpu.isa.simd import I32
from kernels.cpu.runtime.share import arguments, pack_words, share
from kernels.cpu.runtime.team import Program

FAIL = "who: i64, runs: i64[threads] -> "
LONG = "turns: i64 -> out: f64[threads]"
MEET = "counts: i64[threads lines], chance: u64[threads lines], unrest: i64 -> early: i64[threads]"
VISIT = "entry: i64, visits: i64[entries threads] -> early: i64[threads]"
ENTRIES = 40
LENGTH = 1000  # entries of the long program


@share(FAIL)
def fail(args, thread, n_threads):
    """Raise on thread `who`, on all if it is -1; the others count a run."""
    who, runs = arguments(args, FAIL)
    if who in (thread, -1):
        raise ValueError("this share was told to fail")
    runs[thread] += 1


@share(LONG)
def long(args, thread, n_threads):
    """Arithmetic whose time is proportional to the number of turns."""
    turns, out = arguments(args, LONG)
    value = 1.0
    for _ in range(turns):
        value = value * 1.0000001 + 1e-9
    out[thread] += value


@intrinsic
def sleep_microseconds(typing, duration):
    """The C library's usleep."""

    def codegen(context, builder, signature, values):
        kind = ir.FunctionType(I32, [I32])
        usleep = cgutils.get_or_insert_function(builder.module, kind, "usleep")
        builder.call(usleep, [builder.trunc(values[0], I32)])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@share(MEET)
def meet(args, thread, n_threads):
    """Count meetings at barriers, record threads more than one meeting away, and sometimes be late.

    One in `unrest` meetings yields the core, one in 64 of those sleeps for some microseconds.
    """
    counts, chance, unrest, early = arguments(args, MEET)
    counts[thread, 0] += 1
    mine = counts[thread, 0]
    for other in range(n_threads):
        if not mine - 1 <= counts[other, 0] <= mine:
            early[thread] += 1
    state = chance[thread, 0]  # Marsaglia's xorshift
    state ^= state << 13
    state ^= state >> 7
    state ^= state << 17
    chance[thread, 0] = state
    luck = (state >> 20) % (unrest * 64)
    if luck == 0:
        sleep_microseconds(20)
    elif luck % unrest == 0:
        yield_core()


@share(VISIT)
def visit(args, thread, n_threads):
    """Count a visit, and each thread that has not finished the previous entry."""
    entry, visits, early = arguments(args, VISIT)
    before = entry - 1 if entry > 0 else visits.shape[0] - 1
    ahead = 1 if entry > 0 else 0
    for other in range(n_threads):
        if visits[before, other] != visits[entry, thread] + ahead:
            early[thread] += 1
    visits[entry, thread] += 1


class Visits:
    """A program of visits, and its arrays."""

    def __init__(self, n_threads: int) -> None:
        self.visits = np.zeros((ENTRIES, n_threads), np.int64)
        self.early = np.zeros(n_threads, np.int64)
        values = {"visits": self.visits, "early": self.early}
        blocks = [pack_words(VISIT, {"entry": e, **values}) for e in range(ENTRIES)]
        self.program = Program([(visit, block) for block in blocks])

    def check(self, runs: int) -> None:
        assert_array_equal(self.visits, runs)
        assert_array_equal(self.early, 0)


def wait_until(condition, seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.005)


class Meetings:
    """Programs of many meetings and of one, and their counts."""

    def __init__(self, n_threads: int, unrest: int) -> None:
        self.counts = np.zeros((n_threads, 8), np.int64)  # one cache line each
        chance = np.arange(1, 8 * n_threads + 1, dtype=np.uint64).reshape(n_threads, 8)
        self.early = np.zeros(n_threads, np.int64)
        values = {"counts": self.counts, "chance": chance, "unrest": unrest, "early": self.early}
        entry = meet, pack_words(MEET, values)
        self.many, self.one = Program([entry] * LENGTH, chance), Program([entry], chance)

    def check(self, meetings: int) -> None:
        assert_array_equal(self.counts[:, 0], meetings)
        assert_array_equal(self.early, 0)
