"""What a step within a budget costs beside its reads: no memory, and no time to wait."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from numba.core.runtime import _nrt_python

from conformance.support.allocations import allocations
from conformance.support.budgets import KINDS, budgeted, on, wanted, write
from conformance.support.disks import Disk, healthy, slow
from engine.model import Model

pytestmark = pytest.mark.usefixtures("in_time")


@pytest.fixture(params=KINDS)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write(request.param, tmp_path / "small.gguf")


@pytest.fixture(params=[1, 2])
def model(request: pytest.FixtureRequest, path: Path) -> Iterator[Model]:
    with budgeted(path, wanted(path).least, threads=request.param) as model:
        yield model


def test_a_decode_step_allocates_nothing(model: Model) -> None:
    """As with weights in memory: no array, and of Python's heap only what one call takes."""
    _nrt_python.memsys_enable_stats()
    for i in range(4):
        model.step([3 + i], [i], [(0,)], [0])
    allocations(model)
    assert allocations(model) <= (1024, 0)
    assert model.offload
    assert model.offload.readers.fault is None


@pytest.mark.parametrize("threads", [1, 3])
def test_waiting_takes_no_time(path: Path, threads: int) -> None:
    """While a disk makes a step take a second, threads sleep."""
    disk = Disk(healthy)
    with on(disk, path, threads=threads) as model:
        model.step([3], [0], [(0,)], [0])
        assert model.offload
        before = model.offload.readers.statistics.bytes
        model.step([4], [1], [(0,)], [0])
        disk.answer = slow(max(1, model.offload.readers.statistics.bytes - before))
        began, busy = time.monotonic(), time.process_time()
        model.step([4], [2], [(0,)], [0])
        taken, busy = time.monotonic() - began, time.process_time() - busy
    assert taken > 0.3
    assert busy < taken / 4
