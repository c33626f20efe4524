"""The neuron window compared with the simplest model: an OrderedDict a block."""

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from numba import njit
from numba.core.runtime import _nrt_python, rtsys

from conformance.support.neuron_window import AgainstDicts
from kernels.cpu.runtime.neuron_window import NOWHERE, NeuronWindow, slots_needed, want

TestNeuronWindow = AgainstDicts.TestCase
TestNeuronWindow.settings = settings(stateful_step_count=30)


def wanted(window: NeuronWindow, block: int, rows: Any, step: int) -> list[int]:
    """The neurons that must be read."""
    loads = np.zeros((window.neurons[block], 2), np.int32)
    rows = np.asarray(rows, np.int32)
    found = want(window.address, block, rows, len(rows), step, loads)
    return loads[:found, 0].tolist()


def in_memory(window: NeuronWindow, block: int) -> list[int]:
    return np.flatnonzero(window.slots_of(block) != NOWHERE).tolist()


@pytest.mark.parametrize("quota", [0, 1, 5, 14, 15, 60])
def test_hits_and_misses_of_repeated_requests(quota):
    """Blocks that request the same neurons again miss only those without a slot. Misses take slots
    of the previous block, which is needed last: blocks - 1 requests later. A single LRU list would
    never hit, and quotas alone hit no more than their size."""
    blocks, active = 4, np.arange(0, 180, 3)
    capacity = quota * blocks + 180
    window = NeuronWindow([180] * blocks, [quota] * blocks, capacity)
    for block in range(blocks):
        wanted(window, block, active, 0)
    for step in range(1, 13, blocks - 1):
        read = 0
        for later in range(blocks - 1):
            for block in range(blocks):
                missed = len(wanted(window, block, active, step + later))
                assert missed <= max(0, len(active) - quota)
                read += missed
        assert read == blocks * max(0, blocks * len(active) - capacity)


@pytest.mark.parametrize("neurons", [[7], [5, 5], [4, 9, 2]])
def test_the_minimum_capacity_suffices(neurons):
    """With it, blocks that request all of their neurons in turn leave the others their quotas, and
    one of them no slot more; a smaller pool is refused."""
    quota, pinned = [n // 2 for n in neurons], [n // 4 for n in neurons]
    needed = slots_needed(neurons, quota, pinned)
    window, beyond = NeuronWindow(neurons, quota, needed), []
    for block, count in enumerate(pinned):
        window.pin(block, range(count))
    for step in range(2):
        for block, count in enumerate(neurons):
            wanted(window, block, range(count), step)
            assert in_memory(window, block) == list(range(count))
            if step:
                more = np.delete(window.state.held - quota, block)
                assert (more >= 0).all()
                beyond.append(more.sum() + window.state.free[0])
    assert min(beyond) == 0
    unpinned = slots_needed(neurons, quota, [0] * len(neurons))
    with pytest.raises(ValueError, match=f"{unpinned - 1} slots are too few.* {unpinned} are"):
        NeuronWindow(neurons, quota, unpinned - 1)


def test_invalid_pins_are_refused():
    """Neurons that do not fit, do not exist or are pinned already are refused with one line."""
    window = NeuronWindow([6, 4], [1, 1], 8)
    assert window.pin(0, [4, 2])[:, 0].tolist() == [4, 2]
    before = [np.copy(array) for array in window.state]
    with pytest.raises(ValueError, match="8 slots are too few for these neurons: 9 are needed"):
        window.pin(1, [0, 1])
    with pytest.raises(ValueError, match="block 1: rows holds 4, not in 0 to 3"):
        window.pin(1, [0, 4])
    with pytest.raises(ValueError, match="block 0: a neuron is pinned twice"):
        window.pin(0, [2])
    with pytest.raises(ValueError, match="block 1: a neuron is pinned twice"):
        window.pin(1, [3, 3])
    assert all(np.array_equal(a, b) for a, b in zip(before, window.state, strict=True))


def test_slots_are_updated_in_place():
    """A block's slots stay one array, so a share's arguments may hold its address."""
    window = NeuronWindow([3, 5], [3, 5], 8)
    slots = window.slots_of(1)
    assert slots.dtype == np.int32
    assert slots.flags.c_contiguous
    wanted(window, 1, [0, 4], 0)
    assert (slots != NOWHERE).tolist() == [True, False, False, False, True]
    window.forget()
    assert (slots == NOWHERE).all()


@njit
def request_in_turn(window, rows, loads):
    for step in range(rows.shape[0]):
        want(window, step % 2, rows[step], rows.shape[1], step, loads)


def test_requests_allocate_nothing():
    """A hundred requests allocate no more from Numba's runtime than one."""
    _nrt_python.memsys_enable_stats()
    rows = np.sort(
        np.random.default_rng(0).permuted(np.tile(np.arange(64), (100, 1)), axis=1)[:, :9]
    )
    rows, loads = np.ascontiguousarray(rows, np.int32), np.zeros((64, 2), np.int32)
    found = []
    for count in (1, 1, 100):
        window = NeuronWindow([64] * 2, [5] * 2, 69)
        before = rtsys.get_allocation_stats().alloc
        request_in_turn(window.address, rows[:count], loads)
        found.append(rtsys.get_allocation_stats().alloc - before)
    assert found[2] == found[1]
    assert window.state.misses.sum() > 2 * window.capacity
