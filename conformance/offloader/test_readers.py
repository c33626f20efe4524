"""Readers: whatever the readers, the ring and the team, all bytes are right."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.support.depth import DEEP
from conformance.support.streams import Pings, Stream
from kernels.cpu import reading
from kernels.cpu.packing import aligned
from kernels.cpu.readers import File, Readers, iovecs_of
from kernels.cpu.team import Team

pytestmark = pytest.mark.usefixtures("in_time")
ROUNDS = 300 if DEEP else 10


def test_buffers_are_filled_in_turn(file, truth):
    """Any cuts of a place in the file into buffers, empty ones too, get the file's bytes."""
    with Readers([file], n_readers=3) as readers:

        @given(st.integers(0, len(truth)), st.lists(st.integers(0, 3000), max_size=6))
        def filled(offset, sizes):
            sizes = [min(size, (len(truth) - offset) // len(sizes)) for size in sizes]
            buffers = [np.zeros(size, np.uint8) for size in sizes]
            readers.read(0, offset, buffers)
            whole = np.concatenate([*buffers, np.zeros(0, np.uint8)])
            assert_array_equal(whole, truth[offset : offset + sum(sizes)])

        filled()


@pytest.mark.parametrize("n_readers", [1, 2, 8, 64])
@pytest.mark.parametrize("capacity", [1, 2, 64])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_step_gets_all_bytes(file, truth, n_readers, capacity, n_threads):
    """Whatever the readers, the ring and the team: who passed a wait finds the file's bytes."""
    with (
        Readers([file], n_readers, n_threads, n_counters=5, capacity=capacity) as readers,
        Team(n_threads) as team,
    ):
        for seed in range(ROUNDS):
            assert Stream(readers, truth, 200, 5, n_threads, seed).run(team)
        assert readers.statistics.reads >= 200 * ROUNDS


def test_past_the_page_cache(direct, truth):
    """Aligned requests of a file that has no page cache, 64 readers, whole sectors."""
    with Readers([direct], 64, 2, n_counters=3) as readers, Team(2) as team:
        for seed in range(ROUNDS):
            assert Stream(readers, truth, 100, 3, 2, seed, unit=512).run(team)


def test_the_end_of_a_file_is_not_a_whole_sector(direct, truth):
    """Room for whole sectors, bytes to the file's end: that is no fault, one byte more is."""
    memory, first = aligned(4096, 4096), len(truth) // 512 * 512
    with Readers([direct]) as readers:
        assert readers.post(0, first, iovecs_of([memory]), len(truth) - first)
        assert readers.wait(0, 1)
        assert_array_equal(memory[: len(truth) - first], truth[first:])
        readers.post(0, first, iovecs_of([memory]), len(truth) - first + 1)
        assert not readers.wait(0, 2)
        assert readers.fault == f"weights.bin: it was cut short while it was read, at byte {first}"


def test_more_buffers_than_a_call_takes(file, truth):
    """3000 buffers of 100 bytes: the system takes 1024 at a time."""
    buffers = list(np.zeros((3000, 100), np.uint8))
    with Readers([file]) as readers:
        readers.read(0, 17, buffers)
        assert readers.statistics.reads == 3
    assert_array_equal(np.concatenate(buffers), truth[17 : 17 + 300_000])


def test_several_files(truth, tmp_path):
    """A request names its file by its place."""
    paths = [tmp_path / f"{i}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        np.full(100, i, np.uint8).tofile(path)
    sources = [path.open("rb") for path in paths]
    with Readers([File(s.name, s.fileno()) for s in sources]) as readers:
        for i in (2, 0, 1):
            buffer = np.full(60, 9, np.uint8)
            readers.read(i, 40, [buffer])
            assert_array_equal(buffer, i)
        for wrong in (-1, 3):
            with pytest.raises(ValueError, match="file: want 0 to 2"):
                readers.read(wrong, 0, [buffer])
    for source in sources:
        source.close()


def test_counters_go_round(file, truth):
    """After 2**31 requests and after 2**32 everything goes on as before."""
    with Readers([file], 4, capacity=2) as readers, Team(1) as team:
        for near in (2**31, 2**32):
            start = np.array(near - 50, np.int64).astype(np.int32)
            state = readers._state
            state.control[reading.POSTED] = near - 50
            state.counts[[reading.TAKEN, reading.OVER]] = start
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
def test_no_wake_is_lost(file, n_readers, n_threads):
    """Tens of thousands of waits that begin about when they could end: all end."""
    rounds = 5000 * ROUNDS
    with Readers([file], n_readers, n_threads) as readers, Team(n_threads) as team:
        assert_array_equal(Pings(readers, n_threads, rounds).run(team), rounds)
