"""An I/O pool's threads: asleep when idle, gone after close; interrupts end waits, and signals lose
nothing."""

import ctypes
import errno
import gc
import signal
import sys
import threading
import time

import numpy as np
import pytest

from conformance.offloader.conftest import sending_signals
from conformance.support.child import output_of, run
from conformance.support.files.disks import Disk, healthy, slow
from conformance.support.streams import Stream, read_and_compare
from conformance.support.team import wait_until
from kernels.cpu.runtime import io_ring
from kernels.cpu.runtime.io_pool import IOPool, iovecs_of
from kernels.cpu.runtime.team import Team

pytestmark = pytest.mark.usefixtures("timeout")


def test_idle_readers_take_no_cpu_time(file, truth):
    """64 readers with nothing to do take no CPU time, before and after they had something."""
    with IOPool([file], 64) as readers:
        for _ in range(2):
            time.sleep(0.05)
            busy = time.process_time()
            time.sleep(0.3)
            assert time.process_time() - busy < 0.02
            read_and_compare(readers, truth)


def test_statistics(file):
    """Reads, bytes and the time with reads in flight, without gaps and overlaps."""
    begun = threading.Event()

    def late(offset, n_bytes):
        begun.set()
        time.sleep(0.05)

    disk = Disk(healthy)
    with IOPool([file], 4, preadv=disk.address) as readers:
        assert (readers.statistics.reads, readers.statistics.bytes) == (0, 0)
        assert readers.statistics.seconds == 0
        disk.answer = late
        started = time.monotonic()
        buffers = list(np.zeros((4, 100), np.uint8))
        iovecs = [iovecs_of([b]) for b in buffers]
        for pairs in iovecs:
            readers.post(0, 0, pairs, 100)
        begun.wait()
        time.sleep(0.01)
        assert 0 < readers.statistics.seconds < 10
        assert readers.wait(0, 4)
        taken = time.monotonic() - started
        time.sleep(0.2)
        found = readers.statistics
        assert (found.reads, found.bytes) == (4, 400)
        assert 0.19 < found.seconds < taken + 0.1


def readers_alive():
    return [t for t in threading.enumerate() if t.name.startswith("reader ")]


def test_closing_with_reads_in_flight(file):
    """Reads in flight are finished, others are not started; then all threads are gone."""
    begun, gate = threading.Event(), threading.Event()

    def late(offset, n_bytes):
        begun.set()
        gate.wait()

    disk = Disk(late)
    buffers = list(np.zeros((40, 5000), np.uint8))
    iovecs = [iovecs_of([b]) for b in buffers]
    readers = IOPool([file], 3, preadv=disk.address)
    for pairs in iovecs:
        readers.post(0, 0, pairs, 5000)
    begun.wait()
    timer = threading.Timer(0.3, gate.set)
    timer.start()
    readers.close()
    assert gate.is_set()
    assert 1 <= len(disk.calls) <= 3
    timer.join()
    assert not readers_alive()
    readers.close()
    for use in (readers.reset, lambda: readers.wait(0, 0), lambda: readers.read(0, 0, [])):
        with pytest.raises(RuntimeError, match="these readers have been closed"):
            use()


@pytest.mark.parametrize("capacity", [1, 256])  # who posts sleeps, or who waits
def test_closing_ends_waits(file, truth, capacity):
    """Closing readers ends a step on another thread, and a read."""
    disk = Disk(slow(100_000))
    with Team(3) as team:
        readers = IOPool([file], 2, 3, 2, capacity, preadv=disk.address)
        stream = Stream(readers, truth, 200, 2, 3, 1, unit=500)
        timer = threading.Timer(0.1, readers.close)
        timer.start()
        assert not stream.run(team)
        timer.join()
    readers = IOPool([file], 2, preadv=disk.address)
    timer = threading.Timer(0.1, readers.close)
    timer.start()
    with pytest.raises(RuntimeError, match="these readers have been closed"):
        readers.read(0, 0, [np.zeros(50_000, np.uint8)])
    assert not readers_alive(), "the buffer may still be filled"
    timer.join()


def test_garbage_collected_pools_leave_no_threads(file, truth):
    """Pools that are garbage-collected without a close, used or not, leave no threads."""
    for i in range(20):
        readers = IOPool([file], 8)
        if i % 2:
            read_and_compare(readers, truth)
        del readers
    gc.collect()
    wait_until(lambda: not readers_alive())


FORKED = """
import os, sys
import numpy as np
from kernels.cpu.runtime.io_pool import File, IOPool
file = File("numbers", os.open(sys.argv[1], os.O_RDONLY))
readers, buffer = IOPool([file], 8), np.zeros(1000, np.uint8)
readers.read(0, 0, [buffer])
wanted = buffer.copy()
for i in range(10):
    leave = sys.exit if i == 5 else os._exit
    child = os.fork()
    if child == 0:
        try:
            readers.read(0, 0, [buffer])
        except RuntimeError as error:
            leave(0 if "do not survive fork" in str(error) else 3)
        leave(4)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
    buffer[:] = 0
    readers.read(0, 0, [buffer])
    assert (buffer == wanted).all()
"""


def test_a_forked_child_gets_an_error(path):
    """A forked child gets a plain error and exits; the parent continues."""
    done = run(sys.executable, "-W", "ignore", "-c", FORKED, path)
    assert done.returncode == 0, done.stderr


def test_exit_without_close(path):
    """With reads posted and threads asleep, the interpreter ends at once."""
    program = FORKED.split("wanted =")[0] + "print(int(buffer[7]))"
    assert output_of(program, path) == f"{path.read_bytes()[7]}\n"


def test_systems_without_semaphores(file, monkeypatch):
    """A system without them gives a one-line error."""
    real = ctypes.CDLL(None)

    class Without:
        preadv = real.preadv

        def sem_init(self, *_):
            ctypes.set_errno(errno.ENOSYS)
            return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: Without())
    with pytest.raises(OSError, match=r"^no semaphores: function not implemented$"):
        IOPool([file])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_readers": 0}, "readers: want 1 to 256, got 0"),
        ({"n_readers": 257}, "readers: want 1 to 256, got 257"),
        ({"n_threads": 0}, "threads: want 1 to 256, got 0"),
        ({"capacity": 0}, "capacity: want a power of two, got 0"),
        ({"capacity": 12}, "capacity: want a power of two, got 12"),
    ],
)
def test_invalid_sizes_are_refused(file, wrong, message):
    """The message has the requested number."""
    with pytest.raises(ValueError, match=message):
        IOPool([file], **wrong)


@pytest.mark.parametrize("capacity", [1, 256])  # who posts sleeps, or who waits
@pytest.mark.parametrize("n_threads", [1, 3])
def test_ctrl_c_ends_a_step(file, truth, capacity, n_threads):
    """A step that would wait half a minute for its disk is over soon, and the next one is right."""
    disk = Disk(slow(100_000))
    with (
        IOPool([file], 4, n_threads, 2, capacity, preadv=disk.address) as readers,
        Team(n_threads) as team,
    ):
        stream = Stream(readers, truth, 200, 2, n_threads, 1, unit=500)
        assert stream.sizes.sum() > 20 * 100_000 * 0.5
        started = time.monotonic()
        with sending_signals(signal.SIGINT, 0.3), pytest.raises(KeyboardInterrupt):
            stream.run(team)
        assert time.monotonic() - started < 5
        assert readers.interrupted
        assert readers.fault is None
        readers.reset()
        assert not readers.interrupted
        disk.answer = healthy
        assert stream.run(team)


def test_ctrl_c_ends_a_read(file, truth):
    """When the interrupt is raised buffers belong to the caller again: nothing is in flight."""
    disk = Disk(slow(10_000))
    with IOPool([file], 2, preadv=disk.address) as readers:
        with sending_signals(signal.SIGINT, 0.1), pytest.raises(KeyboardInterrupt):
            readers.read(0, 0, [np.zeros(5000, np.uint8)])
        assert readers._state.control[io_ring.IN_FLIGHT] == 0
        disk.answer = healthy
        read_and_compare(readers, truth)


def test_signals_do_not_end_a_read(file, truth, received_signals):
    """A read and a patient step continue; another step says that it was interrupted."""
    disk = Disk(slow(10_000))
    with IOPool([file], 2, preadv=disk.address) as readers, Team(1) as team:
        with sending_signals(signal.SIGUSR1, 0.1):
            read_and_compare(readers, truth)
        for patient in (False, True):
            readers.patient = patient
            with sending_signals(signal.SIGUSR1, 0.1):
                assert Stream(readers, truth, 3, 1, 1, 0, unit=500, largest=5).run(team) == patient
            assert readers.interrupted != patient
            readers.reset()
    assert len(received_signals) == 3


def test_hundreds_of_signals(file, truth, received_signals):
    """Hundreds of signals at any moment: every read ends, with the right bytes."""
    with (
        IOPool([file], 3, capacity=1) as readers,
        sending_signals(signal.SIGUSR1, 0.001, again=True),
    ):
        while len(received_signals) < 100:
            for place in range(0, 500_000, 500):
                read_and_compare(readers, truth, place, 700)
