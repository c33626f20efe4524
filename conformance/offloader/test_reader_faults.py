"""Disks that fail: passing troubles change nothing, others are told, and forgotten on demand."""

import errno
import os

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.depth import DEEP
from conformance.support.disks import Disk, after, healthy, in_turn
from conformance.support.streams import Pings, Stream
from kernels.cpu.packing import aligned
from kernels.cpu.readers import File, Readers
from kernels.cpu.team import Team

pytestmark = pytest.mark.usefixtures("in_time")
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
def test_passing_troubles_change_nothing(direct, truth, answers):
    """Reads in parts, signals, and errors that are gone at the next try: the bytes are right."""
    disk = Disk(in_turn(answers))
    counted = -errno.EIO in answers  # for each request: then one reader gets all the answers
    with (
        Readers([direct], 1 if counted else 4, 2, 2, preadv=disk.address) as readers,
        Team(2) as team,
    ):
        assert Stream(readers, truth, 80, 2, 2, len(answers), unit=512).run(team)
        assert readers.fault is None
    assert [answer for *_, answer in disk.calls][: len(answers)] == answers


LASTING = {
    "EIO": (-errno.EIO, "cannot be read at byte {}: input/output error"),
    "ENXIO": (-errno.ENXIO, "cannot be read at byte {}: no such device or address"),
    "nothing": (0, "it was cut short while it was read, at byte {}"),
    "less than a sector": (100, "it was cut short while it was read, at byte {}"),
}


@pytest.mark.parametrize("capacity", [1, 128])
@pytest.mark.parametrize("healthy_calls", [0, 1, 30])
@pytest.mark.parametrize(("answer", "message"), LASTING.values(), ids=LASTING)
def test_a_fault_ends_every_wait_until_reset(
    direct, truth, answer, message, healthy_calls, capacity
):
    """No wait hangs or passes too early, the fault says where it was, and after a reset, with the
    disk repaired, all is as before."""
    disk = Disk(after(healthy_calls, answer))
    with (
        Readers([direct], 8, 3, 4, capacity, preadv=disk.address) as readers,
        Team(3) as team,
    ):
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
    """Waits that begin about when a fault is told end, tens of thousands of times."""
    file = File("gone", -1)
    with Readers([file], 2, n_threads) as readers, Team(n_threads) as team:
        pings = Pings(readers, n_threads, 1)
        for _ in range(20_000 * SCALE):
            assert not pings.run(team).any()
            assert readers.fault == "gone: cannot be read at byte 64: bad file descriptor"
            readers.reset()


@pytest.mark.parametrize(("code", "tries"), [(errno.EIO, 3), (errno.ENXIO, 1), (errno.EBADF, 1)])
def test_how_often_is_tried(file, code, tries):
    """EIO may pass, and three of them in a row are a fault; any other error will not."""
    disk = Disk(in_turn([-code] * tries))
    with Readers([file], 1, preadv=disk.address) as readers:
        reason = os.strerror(code).lower()
        with pytest.raises(OSError, match=rf"weights\.bin: cannot be read at byte 64: {reason}$"):
            readers.read(0, 64, [np.zeros(10, np.uint8)])
    assert len(disk.calls) == tries


def test_a_file_cut_short_by_others(truth, tmp_path):
    """os.truncate between two reads: what is left is read, what is gone is told."""
    path = tmp_path / "cut.bin"
    truth.tofile(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    memory = aligned(8192, 4096)
    with Readers([File("cut.bin", fd, 512)]) as readers:
        readers.read(0, 4096, [memory])
        os.truncate(path, 4096 + 1000)
        with pytest.raises(OSError, match=r"cut.bin: it was cut short while .*, at byte 4608"):
            readers.read(0, 4096, [memory])
        assert_array_equal(memory[:1000], truth[4096 : 4096 + 1000])
        readers.reset()
        readers.read(0, 0, [memory[:4096]])
    assert_array_equal(memory[:4096], truth[:4096])
    os.close(fd)


def test_places_that_are_not_aligned(direct):
    """What the system refuses has its reason."""
    with (
        Readers([direct]) as readers,
        pytest.raises(OSError, match=r"weights.bin: cannot be read at byte 5: invalid argument"),
    ):
        readers.read(0, 5, [aligned(512)])
