"""The I/O pool: for any readers, ring and team, all bytes are right; transient disk errors change
nothing, others are reported, and cleared on reset."""

import errno
import os

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.testing import assert_array_equal

from conformance.offloader.conftest import SIZE
from conformance.support.depth import DEEP
from conformance.support.files.disks import LASTING, Disk, after, healthy, in_turn
from conformance.support.streams import Pings, Stream
from kernels.cpu.formats.packing import aligned
from kernels.cpu.runtime import io_ring
from kernels.cpu.runtime.io_pool import File, IOPool, iovecs_of
from kernels.cpu.runtime.team import Team

pytestmark = pytest.mark.usefixtures("timeout")
ROUNDS = 300 if DEEP else 10


@pytest.mark.parametrize("n_readers", [1, 2, 8, 64])
@pytest.mark.parametrize("capacity", [1, 2, 64])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_step_gets_all_bytes(file, truth, n_readers, capacity, n_threads):
    """After a wait the file's bytes are there, for any readers, ring and team."""
    with (
        IOPool([file], n_readers, n_threads, n_counters=5, capacity=capacity) as readers,
        Team(n_threads) as team,
    ):
        for seed in range(ROUNDS):
            assert Stream(readers, truth, 200, 5, n_threads, seed).run(team)
        assert readers.statistics.reads >= 200 * ROUNDS


def test_a_partial_last_sector(direct, truth):
    """A buffer of whole sectors may end beyond the file; one byte more is a fault."""
    memory, first = aligned(4096, 4096), len(truth) // 512 * 512
    with IOPool([direct]) as readers:
        assert readers.post(0, first, iovecs_of([memory]), len(truth) - first)
        assert readers.wait(0, 1)
        assert_array_equal(memory[: len(truth) - first], truth[first:])
        readers.post(0, first, iovecs_of([memory]), len(truth) - first + 1)
        assert not readers.wait(0, 2)
        assert readers.fault == f"weights.bin: it was cut short while it was read, at byte {first}"


def test_more_buffers_than_preadv_takes(file, truth):
    """3000 buffers of 100 bytes: preadv takes 1024 at a time."""
    buffers = list(np.zeros((3000, 100), np.uint8))
    with IOPool([file]) as readers:
        readers.read(0, 17, buffers)
        assert readers.statistics.reads == 3
    assert_array_equal(np.concatenate(buffers), truth[17 : 17 + 300_000])


def test_several_files(truth, tmp_path):
    """A request has its file's index."""
    paths = [tmp_path / f"{i}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        np.full(100, i, np.uint8).tofile(path)
    sources = [path.open("rb") for path in paths]
    with IOPool([File(s.name, s.fileno()) for s in sources]) as readers:
        for i in (2, 0, 1):
            buffer = np.full(60, 9, np.uint8)
            readers.read(i, 40, [buffer])
            assert_array_equal(buffer, i)
        for wrong in (-1, 3):
            with pytest.raises(ValueError, match="file: want 0 to 2"):
                readers.read(wrong, 0, [buffer])
    for source in sources:
        source.close()


def test_counters_wrap_around(file, truth):
    """Counters wrap around after 2**31 and 2**32 requests."""
    with IOPool([file], 4, capacity=2) as readers, Team(1) as team:
        for near in (2**31, 2**32):
            start = np.array(near - 50, np.int64).astype(np.int32)
            state = readers._state
            state.control[io_ring.POSTED] = near - 50
            state.counts[[io_ring.TAKEN, io_ring.OVER]] = start
            assert Stream(readers, truth, 200, 1, 1, near).run(team)
            readers.reset()
            buffers = list(np.zeros((10, 8), np.uint8))
            iovecs = [iovecs_of([b]) for b in buffers]
            readers.counters[0] = np.array(near - 5, np.int64).astype(np.int32)
            for pairs in iovecs:
                assert readers.post(0, 8, pairs, 8)
            assert readers.wait(0, near + 5)
            assert_array_equal(buffers, np.tile(truth[8:16], (10, 1)))


@pytest.mark.parametrize("n_readers", [1, 4])
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_no_wakeup_is_lost(file, n_readers, n_threads):
    """Tens of thousands of waits that start about when they could end: all end."""
    rounds = 5000 * ROUNDS
    with IOPool([file], n_readers, n_threads) as readers, Team(n_threads) as team:
        assert_array_equal(Pings(readers, n_threads, rounds).run(team), rounds)


SCALE = 30 if DEEP else 1
SHORT = [(k % 3) * 512 + 512 for k in range(60)]
PASSING = {
    "short": SHORT,
    "EINTR": [-errno.EINTR, None] * 30,
    "EAGAIN": [-errno.EAGAIN] * 40,
    "EIO once": [-errno.EIO, None] * 30,
    "EIO twice": [-errno.EIO, -errno.EIO, None] * 20,
    "nothing once": [0],
    "all": [512, -errno.EINTR, None, -errno.EIO, 1024, None] * 20,
}


@pytest.mark.parametrize("answers", PASSING.values(), ids=PASSING)
def test_transient_errors_are_retried(direct, truth, answers):
    """Short reads, signals, and transient errors: the bytes are right."""
    disk = Disk(in_turn(answers))
    counted = -errno.EIO in answers  # for each request: then one reader gets all the answers
    with (
        IOPool([direct], 1 if counted else 4, 2, 2, preadv=disk.address) as readers,
        Team(2) as team,
    ):
        assert Stream(readers, truth, 80, 2, 2, len(answers), unit=512).run(team)
        assert readers.fault is None
    assert [answer for *_, answer in disk.calls][: len(answers)] == answers


LESS = {"less than a sector": (100, "it was cut short while it was read, at byte {}")}
FAULTS = LASTING | LESS


@pytest.mark.parametrize("capacity", [1, 128])
@pytest.mark.parametrize("healthy_calls", [0, 1, 30])
@pytest.mark.parametrize(("answer", "message"), FAULTS.values(), ids=FAULTS)
def test_a_fault_ends_every_wait_until_reset(
    direct, truth, answer, message, healthy_calls, capacity
):
    """No wait hangs or succeeds too early, the fault names its place, and after a reset, with the
    disk repaired, everything works as before."""
    disk = Disk(after(healthy_calls, answer))
    with IOPool([direct], 8, 3, 4, capacity, preadv=disk.address) as readers, Team(3) as team:
        stream = Stream(readers, truth, 100, 4, 3, healthy_calls, unit=512)
        for _ in range(3):
            assert not stream.run(team)
            assert not readers.interrupted
            places = {offset for offset, _, told in disk.calls if told == answer}
            assert readers.fault in {f"weights.bin: {message.format(place)}" for place in places}
            assert not readers.post(0, 0, stream.iovecs[0], 8)
            assert not readers.wait(0, 0)
            with pytest.raises(OSError, match=r"weights.bin: "):
                readers.read(0, 0, [np.zeros(512, np.uint8)])
            calls = len(disk.calls)
            readers.reset()
            assert len(disk.calls) <= calls + 8, "what was posted was read after all"
            assert readers.fault is None
            disk.answer = after(healthy_calls, answer)
        disk.answer = healthy
        assert stream.run(team)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_no_fault_is_lost(n_threads):
    """Waits that start about when a fault is reported end, tens of thousands of times."""
    file = File("gone", -1)
    with IOPool([file], 2, n_threads) as readers, Team(n_threads) as team:
        pings = Pings(readers, n_threads, 1)
        for _ in range(20_000 * SCALE):
            assert not pings.run(team).any()
            assert readers.fault == "gone: cannot be read at byte 64: bad file descriptor"
            readers.reset()


@pytest.mark.parametrize(("code", "tries"), [(errno.EIO, 3), (errno.ENXIO, 1), (errno.EBADF, 1)])
def test_number_of_retries(file, code, tries):
    """EIO is retried, and three in a row are a fault; any other error is one at once."""
    disk = Disk(in_turn([-code] * tries))
    with IOPool([file], 1, preadv=disk.address) as readers:
        reason = os.strerror(code).lower()
        with pytest.raises(OSError, match=rf"weights\.bin: cannot be read at byte 64: {reason}$"):
            readers.read(0, 64, [np.zeros(10, np.uint8)])
    assert len(disk.calls) == tries


def test_a_file_truncated_between_reads(truth, tmp_path):
    """os.truncate between two reads: the rest is read, and the missing part is reported."""
    path = tmp_path / "cut.bin"
    truth.tofile(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    memory = aligned(8192, 4096)
    with IOPool([File("cut.bin", fd, 512)]) as readers:
        readers.read(0, 4096, [memory])
        os.truncate(path, 4096 + 1000)
        with pytest.raises(OSError, match=r"cut.bin: it was cut short while .*, at byte 4608"):
            readers.read(0, 4096, [memory])
        assert_array_equal(memory[:1000], truth[4096 : 4096 + 1000])
        readers.reset()
        readers.read(0, 0, [memory[:4096]])
    assert_array_equal(memory[:4096], truth[:4096])
    os.close(fd)


def test_misaligned_reads_are_reported(direct):
    """The system's refusal is reported with its reason."""
    with (
        IOPool([direct]) as readers,
        pytest.raises(OSError, match=r"weights.bin: cannot be read at byte 5: invalid argument"),
    ):
        readers.read(0, 5, [aligned(512)])


SOME_TROUBLE = (600, -errno.EINTR, -errno.EAGAIN)
COUNTERS = 3


class PoolMachine(RuleBasedStateMachine):
    """Requests posted since the last reset, and whether the disk may have failed since."""

    path, truth = "", np.zeros(0, np.uint8)

    @initialize(
        capacity=st.sampled_from([1, 2, 16]),
        n_readers=st.sampled_from([1, 2, 8]),
        alignment=st.sampled_from([1, 512]),
    )
    def open(self, capacity, n_readers, alignment):
        self.source = open(self.path, "rb")  # noqa: PTH123, SIM115
        self.disk = Disk(healthy)
        file = File("weights.bin", self.source.fileno(), alignment)
        self.readers = IOPool([file], n_readers, 1, COUNTERS, capacity, self.disk.address)
        self.unit, self.broken = alignment, False
        self.posted = [[] for _ in range(COUNTERS)]

    @rule(
        place=st.integers(0, SIZE - 2**16), size=st.integers(0, 20_000), cut=st.integers(0, 20_000),
        counter=st.integers(0, COUNTERS - 1), times=st.integers(1, 5),
    )  # fmt: skip
    def post(self, place, size, cut, counter, times):
        place, size = place // self.unit * self.unit, size // self.unit * self.unit
        cut = min(cut // self.unit * self.unit, size)
        for _ in range(times):
            buffer = np.full(size, 0x5A, np.uint8)
            iovecs = iovecs_of([buffer[:cut], buffer[cut:]])
            if self.readers.post(0, place, iovecs, size, counter):
                self.posted[counter].append((place, buffer, iovecs))
            else:
                assert self.broken
                assert self.readers.fault

    @rule(counter=st.integers(0, COUNTERS - 1))
    def wait(self, counter):
        if self.readers.wait(counter, len(self.posted[counter])):
            for place, buffer, _ in self.posted[counter]:
                assert_array_equal(buffer, self.truth[place : place + len(buffer)])
        else:
            assert self.broken
            assert self.readers.fault
            assert self.readers.fault.startswith("weights.bin: ")

    @rule(
        place=st.integers(0, SIZE - 2**16),
        sizes=st.lists(st.integers(0, 2000), min_size=1, max_size=6),
    )
    def read(self, place, sizes):
        place, sizes = place // self.unit * self.unit, [n // self.unit * self.unit for n in sizes]
        buffers = [np.zeros(size, np.uint8) for size in sizes]
        told = ""
        try:
            self.readers.read(0, place, buffers)
        except OSError as error:
            told = str(error)
        if told:
            assert self.broken
            assert told == self.readers.fault
        else:
            assert_array_equal(np.concatenate(buffers), self.truth[place : place + sum(sizes)])

    @precondition(lambda self: not self.broken)
    @rule(answers=st.lists(st.sampled_from([*SOME_TROUBLE, None]), max_size=12))
    def trouble(self, answers):
        self.disk.answer = in_turn(answers)

    @rule(answer=st.sampled_from([answer for answer, _ in LASTING.values()]))
    def fail(self, answer):
        self.disk.answer, self.broken = lambda *_: answer, True

    @rule()
    def reset(self):
        self.disk.answer, self.broken = healthy, False
        self.readers.reset()
        assert self.readers.fault is None
        assert not self.readers.counters.any()
        self.posted = [[] for _ in range(COUNTERS)]

    def teardown(self):
        if hasattr(self, "readers"):
            self.readers.close()
            self.source.close()


def test_any_order_of_use(path, truth, monkeypatch):
    """After any sequence of operations: bytes are right, faults are reported exactly where the disk
    failed, nothing hangs, and a reset restores everything."""
    monkeypatch.setattr(PoolMachine, "path", path)
    monkeypatch.setattr(PoolMachine, "truth", truth)
    steps = settings(max_examples=1000 if DEEP else 40, stateful_step_count=40)
    run_state_machine_as_test(PoolMachine, settings=steps)
