"""Steps with I/O, where thread 0 posts requests and every thread waits: random requests, and their
buffers."""

import numpy as np
from numpy.testing import assert_array_equal

from kernels.cpu.formats.packing import aligned
from kernels.cpu.isa.atomics import atomic_load, pause
from kernels.cpu.runtime.io_pool import IOPool, iovecs_of
from kernels.cpu.runtime.io_ring import post, wait
from kernels.cpu.runtime.share import arguments, pack_words, share
from kernels.cpu.runtime.team import Program, Team

STREAM = (
    "readers: u64, requests: i64[requests request], places: i64[requests], "
    "wanted: i64[counters], truth: u8[size], memory: u8[room] "
    "-> passed: i64[threads counters], wrong: i64[threads]"
)


@share(STREAM)
def stream(args, thread, n_threads):
    """Post all requests; wait for each counter, every thread starting with another one, and count
    bytes that differ from the file (truth) in its buffers."""
    readers, requests, places, wanted, truth, memory, passed, wrong = arguments(args, STREAM)
    if thread == 0:
        for r in requests:
            if not post(readers, r[0], r[1], r[2], r[3], r[4], r[5]):
                break
    for i in range(len(wanted)):
        counter = (i + thread) % len(wanted)
        if not wait(readers, counter, wanted[counter], thread):
            return
        passed[thread, counter] += 1
        for k in range(len(requests)):
            if requests[k, 5] == counter:
                for j in range(requests[k, 4]):
                    if memory[places[k] + j] != truth[requests[k, 1] + j]:
                        wrong[thread] += 1


PING = (
    "readers: u64, request: i64[request], rounds: i64, chance: u64[threads lines], "
    "buffer: i64[one] -> passed: i64[threads]"
)
LOOKS, PAUSES = 2000, 16


@share(PING)
def ping(args, thread, n_threads):
    """Post one request and wait for it, repeatedly. Threads reach the wait around the time that the
    bytes and the counter arrive, before or after at random."""
    readers, r, rounds, chance, buffer, passed = arguments(args, PING)
    for i in range(rounds):
        if thread == 0:
            buffer[0] = 0
            if not post(readers, r[0], r[1], r[2], r[3], r[4], r[5]):
                return
        looks = LOOKS
        while atomic_load(buffer, 0) == 0 and looks > 0:
            looks -= 1
            pause()
        state = chance[thread, 0]  # Marsaglia's xorshift
        state ^= state << 13
        state ^= state >> 7
        state ^= state << 17
        chance[thread, 0] = state
        for _ in range((state >> 20) % PAUSES):
            pause()
        if not wait(readers, r[5], i + 1, thread):
            return
        passed[thread] += 1


class Stream:
    """Random requests of one file, each into a few consecutive buffers.

    Places, sizes and buffers are multiples of `unit` bytes. Running it checks every byte.
    """

    def __init__(self, readers, truth, n_requests, n_counters, n_threads, seed, unit=1, largest=40):
        random = np.random.default_rng(seed)
        sizes = unit * random.integers(1, largest, n_requests)
        offsets = unit * random.integers(0, (len(truth) - sizes) // unit + 1)
        places = np.cumsum(sizes) - sizes
        counters = random.integers(0, n_counters, n_requests)
        memory = aligned(int(sizes.sum()), 4096)
        self.iovecs, self.memory, self.sizes = [], memory, sizes
        for place, size in zip(places, sizes, strict=True):
            cuts = np.sort(random.integers(0, size // unit + 1, random.integers(0, 4))) * unit
            edges = np.array([0, *cuts, size])
            pairs = np.stack([memory.ctypes.data + place + edges[:-1], np.diff(edges)], axis=1)
            self.iovecs.append(np.ascontiguousarray(pairs, np.int64))
        self._fresh = [pairs.copy() for pairs in self.iovecs]
        columns = (
            np.zeros(n_requests), offsets, [p.ctypes.data for p in self.iovecs],
            [len(p) for p in self.iovecs], sizes, counters,
        )  # fmt: skip
        requests = np.ascontiguousarray(np.stack([np.array(c, np.int64) for c in columns], axis=1))
        self.requests = requests
        self.wanted = np.bincount(counters, minlength=n_counters).astype(np.int64)
        self.passed = np.zeros((n_threads, n_counters), np.int64)
        self.wrong = np.zeros(n_threads, np.int64)
        values = {
            "readers": readers.address, "requests": requests, "places": places,
            "wanted": self.wanted, "truth": truth, "memory": memory,
            "passed": self.passed, "wrong": self.wrong,
        }  # fmt: skip
        self.readers: IOPool = readers
        self.program = Program([(stream, pack_words(STREAM, values))], values)

    def run(self, team: Team) -> bool:
        """Whether every wait of every thread succeeded; no successful wait has a wrong byte."""
        for pairs, fresh in zip(self.iovecs, self._fresh, strict=True):
            pairs[:] = fresh
        self.memory[:] = 0xA5
        self.passed[:] = 0
        self.readers.counters[:] = 0
        team.run(self.program)
        assert not self.wrong.any()
        return bool(self.passed.all())


class Pings:
    """One request of eight bytes, posted and waited for repeatedly."""

    def __init__(self, readers, n_threads, rounds):
        self.buffer, self.passed = np.zeros(8, np.uint8), np.zeros(n_threads, np.int64)
        self.iovecs, self.readers = iovecs_of([self.buffer]), readers
        chance = np.arange(1, 8 * n_threads + 1, dtype=np.uint64).reshape(n_threads, 8)
        values = {
            "readers": readers.address, "rounds": rounds, "buffer": self.buffer.view(np.int64),
            "request": np.array([0, 64, self.iovecs.ctypes.data, 1, 8, 0], np.int64),
            "chance": chance, "passed": self.passed,
        }  # fmt: skip
        self.program = Program([(ping, pack_words(PING, values))], values)

    def run(self, team):
        """The number of waits that each thread passed."""
        self.passed[:] = 0
        team.run(self.program)
        return self.passed


def read_and_compare(readers, truth, offset=1000, size=5000):
    """Read one buffer from Python."""
    buffer = np.zeros(size, np.uint8)
    readers.read(0, offset, [buffer])
    assert_array_equal(buffer, truth[offset : offset + size])
