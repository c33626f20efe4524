"""Weights read from disk while a step runs: whole matrices in the order of the step, and rows of
the neurons, or matrices of the experts, that it needs. Thread 0 requests them, all threads wait for
what they are about to use (io_pool.py)."""

import numpy as np

from kernels.cpu.isa.simd import CACHE_LINE
from kernels.cpu.isa.system_calls import nanoseconds
from kernels.cpu.runtime.io_ring import post, wait
from kernels.cpu.runtime.neuron_window import want
from kernels.cpu.runtime.share import arguments, share

# Words of `state` of a stream: how many weights were requested since the beginning, then for each
# thread, on a cache line of its own, the step it is in.
ASKED, STEP = 0, CACHE_LINE // 8
LINE = CACHE_LINE // 8

TURN = (
    "readers: u64, pieces: i64[pieces 4], firsts: i64[bounds], after: i64[weights],"
    " iovecs: i64[pieces 2], state: i64[words], stalls: i64[weights], used: i64, wanted: i64 -> "
)
FETCH = (
    "readers: u64, window: u64, rows: i32[neurons], count: i32[1], sections: i64[sections 4],"
    " loads: i32[neurons 2], iovecs: i64[vectors 2], pool: u8[capacity stride], gap: u8[bytes],"
    " asked: i64[words], block: i64, counter: i64, most: i64 -> slots: i32[neurons]"
)
ARRIVE = (
    "readers: u64, asked: i64[words], stall: i64[1], counter: i64, section: i64"
    " -> slots: i32[neurons]"
)

# Words of `asked`: steps, then for each section its reads since the beginning.
STEPS, READS = 0, 1
# Upper bound of one read: so many neurons, or bytes if these are one neuron's or more; of
# large ones several reads at once keep a disk busier than one.
TOGETHER, LARGEST = 64, 2**22


@share(TURN)
def turn(args, thread, n_threads):
    """The wait of one stage: `used` weights of the step are done on all threads, which lets reading
    continue; wait until `wanted` have arrived. The first turn of a step has used none.

    Weight j is pieces[firsts[j]:firsts[j + 1]]: offset in file 0, address, bytes, and the address
    of the piece's iovec. It may be read once after[j] weights of its step were used, and is counted
    by counter j.
    """
    readers, pieces, firsts, after, iovecs, state, stalls, used, wanted = arguments(args, TURN)
    own, weights = STEP + LINE * thread, len(after)
    state[own] += used == 0
    step = state[own]
    if thread == 0:
        asked = state[ASKED]
        while step * weights + used >= asked // weights * weights + after[asked % weights]:
            j = asked % weights
            for p in range(firsts[j], firsts[j + 1]):
                iovecs[p, 0], iovecs[p, 1] = pieces[p, 1], pieces[p, 2]
                post(readers, 0, pieces[p, 0], pieces[p, 3], 1, pieces[p, 2], j)
            asked += 1
        state[ASKED] = asked
    for j in range(used, wanted):
        began = nanoseconds()
        wait(readers, j, np.int32((firsts[j + 1] - firsts[j]) * (step + 1)), thread)
        if thread == 0:
            stalls[j] += nanoseconds() - began


@share(FETCH)
def fetch(args, thread, n_threads):
    """Request the needed neurons that are not in memory; neighbours on disk share a read, with at
    most `most` unneeded neurons between any two.

    A section has, for neuron i, bytes [offset + i * size, ... + size) in a file, that go to a byte
    of its slot: (file, offset, size, byte). Reads of section s are counted by counter + s, and are
    posted in the order of the sections.
    """
    (
        readers, window, rows, count, sections, loads, iovecs, pool, gap, asked, own, counter,
        most, _,
    ) = arguments(args, FETCH)  # fmt: skip
    if thread:
        return
    missing = want(window, own, rows, count[0], asked[STEPS], loads)
    asked[STEPS] += 1
    at = 0
    for s in range(len(sections)):
        file, offset, size, byte = sections[s]
        together, begin = max(1, min(TOGETHER, LARGEST // size)), 0
        while begin < missing:
            end = begin + 1
            while (
                end < missing
                and loads[end, 0] - loads[end - 1, 0] <= most + 1
                and loads[end, 0] - loads[begin, 0] < together
            ):
                end += 1
            first, last = loads[begin, 0], loads[end - 1, 0]
            start, i = at, begin
            for neuron in range(first, last + 1):
                iovecs[at, 1] = size
                if loads[i, 0] == neuron:
                    iovecs[at, 0] = pool[loads[i, 1], byte:].ctypes.data
                    i += 1
                else:
                    iovecs[at, 0] = gap.ctypes.data
                at += 1
            where = iovecs[start].ctypes.data
            n = at - start
            post(readers, file, offset + first * size, where, n, n * size, counter + s)
            asked[READS + s] += 1
            begin = end


@share(ARRIVE)
def arrive(args, thread, n_threads):
    """Wait for the requested rows of a section."""
    readers, asked, stall, counter, section, _ = arguments(args, ARRIVE)
    began = nanoseconds()
    wait(readers, counter + section, np.int32(asked[READS + section]), thread)
    if thread == 0:
        stall[0] += nanoseconds() - began
