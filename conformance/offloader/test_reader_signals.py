"""Signals while readers read: an interrupt ends what waits, and nothing is lost."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from conformance.support.disks import Disk, healthy, slow
from conformance.support.streams import Stream, read_and_compare
from kernels.cpu import reading
from kernels.cpu.readers import Readers
from kernels.cpu.team import Team

pytestmark = pytest.mark.usefixtures("in_time")


@pytest.fixture
def signals():
    """How many SIGUSR1 came, whose handler raises nothing."""
    came = []
    before = signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
    yield came
    signal.signal(signal.SIGUSR1, before)


def send_after(seconds, number):
    timer = threading.Timer(seconds, os.kill, (os.getpid(), number))
    timer.start()
    return timer


@pytest.mark.parametrize("capacity", [1, 256])  # who posts sleeps, or who waits
@pytest.mark.parametrize("n_threads", [1, 3])
def test_ctrl_c_ends_a_step(file, truth, capacity, n_threads):
    """A step that would wait half a minute for its disk is over soon, and the next one is right."""
    disk = Disk(slow(100_000))
    with (
        Readers([file], 4, n_threads, 2, capacity, preadv=disk.address) as readers,
        Team(n_threads) as team,
    ):
        stream = Stream(readers, truth, 200, 2, n_threads, 1, unit=500)
        assert stream.sizes.sum() > 20 * 100_000 * 0.5
        started = time.monotonic()
        timer = send_after(0.3, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            stream.run(team)
        assert time.monotonic() - started < 5
        timer.join()
        assert readers.interrupted
        assert readers.fault is None
        readers.reset()
        assert not readers.interrupted
        disk.answer = healthy
        assert stream.run(team)


def test_ctrl_c_ends_a_read(file, truth):
    """Buffers are the caller's again when the interrupt is raised: nothing is on its way."""
    disk = Disk(slow(10_000))
    with Readers([file], 2, preadv=disk.address) as readers:
        timer = send_after(0.1, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            readers.read(0, 0, [np.zeros(5000, np.uint8)])
        timer.join()
        assert readers._state.control[reading.IN_FLIGHT] == 0
        disk.answer = healthy
        read_and_compare(readers, truth)


def test_signals_that_raise_nothing(file, truth, signals):
    """A read goes on after them, and so does a patient step; another says that it was
    interrupted."""
    disk = Disk(slow(10_000))
    with Readers([file], 2, preadv=disk.address) as readers, Team(1) as team:
        timer = send_after(0.1, signal.SIGUSR1)
        read_and_compare(readers, truth)
        timer.join()
        for patient in (False, True):
            readers.patient = patient
            timer = send_after(0.1, signal.SIGUSR1)
            assert Stream(readers, truth, 3, 1, 1, 0, unit=500, largest=5).run(team) == patient
            timer.join()
            assert readers.interrupted != patient
            readers.reset()
    assert len(signals) == 3


def test_a_storm_of_signals(file, truth, signals):
    """Hundreds of signals at any moment: every read ends, with the right bytes."""
    with Readers([file], 3, capacity=1) as readers:
        ends = threading.Event()

        def storm():
            while not ends.wait(0.001):
                os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=storm)
        thread.start()
        try:
            while len(signals) < 100:
                for place in range(0, 500_000, 500):
                    read_and_compare(readers, truth, place, 700)
        finally:
            ends.set()
            thread.join()
