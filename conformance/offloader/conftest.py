"""Files to read from, signals, and no test that hangs."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import pytest

from conformance.support.depth import DEEP
from kernels.cpu.runtime.io_pool import File

SIZE = 2**20 + 77  # the last sector is not whole
PATIENCE = 3600 if DEEP else 100  # seconds


@pytest.fixture(scope="session")
def truth():
    """uint8 [SIZE]"""
    return np.random.default_rng(7).integers(0, 256, SIZE, dtype=np.uint8)


@pytest.fixture(scope="session")
def path(truth, tmp_path_factory):
    """A file with these bytes, not to be written to."""
    path = tmp_path_factory.mktemp("offloader") / "weights.bin"
    truth.tofile(path)
    return path


@pytest.fixture(scope="package", autouse=True)
def _packed_here(tmp_path_factory):
    """What tests pack in this process goes with them."""
    folder = tmp_path_factory.mktemp("cache")
    with patch("engine.compile.packed_weights.cache_folder", lambda: folder):
        yield


@pytest.fixture
def timeout():
    """Waiting for readers in vain is ended by a signal."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError("this test hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def received_signals():
    """A word for each SIGUSR1 received; its handler raises nothing."""
    words = []
    before = signal.signal(signal.SIGUSR1, lambda *_: words.append("came"))
    yield words
    signal.signal(signal.SIGUSR1, before)


@contextmanager
def sending_signals(number: int, seconds: float, again: bool = False) -> Iterator[None]:
    """This process receives a signal after a time, or repeatedly until the end of the context."""
    ends = threading.Event()

    def send() -> None:
        while not ends.wait(seconds):
            os.kill(os.getpid(), number)
            if not again:
                return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@pytest.fixture
def file(path):
    """A file read through the page cache."""
    with path.open("rb") as source:
        yield File(path.name, source.fileno())


@pytest.fixture
def direct(path):
    """A file read past the page cache (O_DIRECT)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    yield File(path.name, fd, 512)
    os.close(fd)
