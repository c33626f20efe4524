"""Shares for tests of the team: they fail, sleep, or take long."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.atomics import yield_core
from kernels.cpu.share import arguments, share
from kernels.cpu.simd import I32

FAIL = "who: i64, runs: i64[threads] -> "
LONG = "turns: i64 -> out: f64[threads]"
MEET = "counts: i64[threads lines], chance: u64[threads lines], unrest: i64 -> early: i64[threads]"


@share(FAIL)
def fail(block, thread, n_threads):
    """Raise on thread `who`, on all if it is -1; the others count a run."""
    who, runs = arguments(block, FAIL)
    if who in (thread, -1):
        raise ValueError("this share was told to fail")
    runs[thread] += 1


@share(LONG)
def long(block, thread, n_threads):
    """Arithmetic that takes as long as its turns are many."""
    turns, out = arguments(block, LONG)
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
def meet(block, thread, n_threads):
    """Count, note whoever is more than one meeting away, and now and then be late.

    One in `unrest` meetings yields the core, one in 64 of those sleeps for some microseconds.
    """
    counts, chance, unrest, early = arguments(block, MEET)
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
