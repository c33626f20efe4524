"""Which neurons are in memory, against the plainest model there is: an OrderedDict a block."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from numba import njit
from numba.core.runtime import _nrt_python, rtsys

from kernels.cpu import neuron_window
from kernels.cpu.neuron_window import FREE, NOWHERE, NeuronWindow, slots_needed, trim, want

BLOCKS = 3
UNTOUCHED = -7
blocks = st.integers(0, BLOCKS - 1)


@st.composite
def some_of(draw: st.DrawFn, neurons: int) -> list[int]:
    """None, all, or some of so many neurons, ascending."""
    some = st.sets(st.integers(0, max(neurons - 1, 0)), max_size=neurons).map(sorted)
    return draw(st.just([]) | st.just([*range(neurons)]) | some)


class AgainstDicts(RuleBasedStateMachine):
    """Any order of calls leaves a window saying what one OrderedDict a block says, of the step in
    which each neuron was used last, least recently used first."""

    tried: Any = neuron_window

    def handle(self) -> Any:
        """What the calls take for the window."""
        return self.window.address

    @initialize(
        data=st.data(),
        neurons=st.lists(st.integers(0, 9), min_size=BLOCKS, max_size=BLOCKS),
        quota=st.lists(st.integers(0, 10), min_size=BLOCKS, max_size=BLOCKS),
        steps=st.sampled_from([0, 1, 2, None]),
        spare=st.integers(0, 2),
    )
    def start(
        self,
        data: st.DataObject,
        neurons: list[int],
        quota: list[int],
        steps: int | None,
        spare: int,
    ) -> None:
        self.neurons, self.quota, self.steps = neurons, quota, steps
        pinned = [data.draw(some_of(n)) for n in neurons]
        counts = list(map(len, pinned))
        trimmed = [p + min(q, n - p) for p, q, n in zip(counts, quota, neurons, strict=True)]
        needed = max(sum(trimmed) - t + n for t, n in zip(trimmed, neurons, strict=True))
        assert self.tried.slots_needed(neurons, quota, counts) == needed
        limit = () if steps is None else (steps,)
        self.window = self.tried.NeuronWindow(neurons, quota, needed + spare, *limit)
        self.forgotten()
        self.step, self.hits, self.misses = 0, [0] * BLOCKS, [0] * BLOCKS
        self.pinned: list[list[int]] = [[] for _ in range(BLOCKS)]
        for block, rows in enumerate(pinned):
            self.pin(block, rows)

    def forgotten(self) -> None:
        self.held: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(BLOCKS)]
        self.last: tuple[int, int] | None = None

    def pin(self, block: int, rows: list[int]) -> None:
        loads = self.window.pin(block, rows)
        assert loads[:, 0].tolist() == rows
        assert loads[:, 1].tolist() == self.window.slots_of(block)[rows].tolist()
        self.pinned[block] = rows

    def trimmed(self, block: int, step: int) -> None:
        held, quota = self.held[block], self.quota[block]
        while held and (len(held) > quota or self.is_old(next(iter(held.values())), step)):
            held.popitem(last=False)

    def is_old(self, used: int, step: int) -> bool:
        return self.steps is not None and step - used > self.steps

    @rule(data=st.data(), block=blocks, later=st.integers(0, 2))
    def want(self, data: st.DataObject, block: int, later: int) -> None:
        """Misses are given slots, hits keep theirs, and all that were wanted are in memory."""
        rows = data.draw(some_of(self.neurons[block]))
        self.step += later
        if self.last:
            self.trimmed(*self.last)
        self.last = block, self.step
        held = self.held[block]
        missed = [r for r in rows if r not in held and r not in self.pinned[block]]
        hit = [r for r in rows if r not in missed]
        slots = self.window.slots_of(block)
        before = slots[hit]
        loads = np.full((self.neurons[block], 2), UNTOUCHED, np.int32)
        padded = np.zeros(self.neurons[block], np.int32)
        padded[: len(rows)] = rows
        found = self.tried.want(self.handle(), block, padded, len(rows), self.step, loads)
        assert loads[:found, 0].tolist() == missed
        assert loads[:found, 1].tolist() == slots[missed].tolist()
        assert (loads[found:] == UNTOUCHED).all()
        assert slots[hit].tolist() == before.tolist()
        for row in rows:
            if row not in self.pinned[block]:
                held[row] = self.step
                held.move_to_end(row)
        self.hits[block] += len(hit)
        self.misses[block] += len(missed)

    @rule(block=blocks, later=st.integers(0, 2))
    def trim(self, block: int, later: int) -> None:
        self.tried.trim(self.handle(), block, self.step + later)
        self.trimmed(block, self.step + later)

    @rule(everything=st.booleans())
    def forget(self, everything: bool) -> None:
        """After which pinned neurons are pinned anew, if those were forgotten too."""
        self.tried.forget(self.handle(), everything)
        self.forgotten()
        if everything:
            assert (self.window.state.slots == NOWHERE).all()
            for block, rows in enumerate(self.pinned):
                self.pin(block, rows)

    @precondition(lambda self: any(self.held))
    @rule(block=blocks)
    def pin_late(self, block: int) -> None:
        with pytest.raises(ValueError, match=f"block {block}: neurons are pinned before any"):
            self.window.pin(block, [])

    @invariant()
    def in_memory_is_what_the_dicts_hold(self) -> None:
        for block, held in enumerate(self.held):
            there = np.flatnonzero(self.window.slots_of(block) != NOWHERE)
            assert there.tolist() == sorted([*held, *self.pinned[block]])

    @invariant()
    def a_slot_has_one_owner_or_is_free(self) -> None:
        s = self.window.state
        free = s.free[: s.now[FREE]].tolist()
        owned = np.flatnonzero(s.owner != NOWHERE)
        assert sorted([*free, *owned.tolist()]) == list(range(self.window.capacity))
        assert (s.slots[s.owner[owned]] == owned).all()
        assert len(owned) == s.held.sum() + s.pinned.sum() == (s.slots != NOWHERE).sum()

    @invariant()
    def rings_are_in_order_of_use_both_ways(self) -> None:
        s = self.window.state
        for block, held in enumerate(self.held):
            slots = self.window.slots_of(block)[[*held]].tolist()
            end = self.window.capacity + block
            ring = [end, *slots, end]
            assert [s.after[i] for i in ring[:-1]] == ring[1:]
            assert [s.before[i] for i in ring[1:]] == ring[:-1]
            assert s.stamp[slots].tolist() == list(held.values())
            pinned = self.window.slots_of(block)[self.pinned[block]]
            assert (s.after[pinned] == NOWHERE).all()

    @invariant()
    def counts_agree(self) -> None:
        s = self.window.state
        assert s.held.tolist() == list(map(len, self.held))
        assert s.pinned.tolist() == list(map(len, self.pinned))
        assert s.hits.tolist() == self.hits
        assert s.misses.tolist() == self.misses


TestNeuronWindow = AgainstDicts.TestCase
TestNeuronWindow.settings = settings(stateful_step_count=30)


def wanted(window: NeuronWindow, block: int, rows: Any, step: int) -> list[int]:
    """Those of the neurons that must be read."""
    loads = np.zeros((window.neurons[block], 2), np.int32)
    rows = np.asarray(rows, np.int32)
    found = want(window.address, block, rows, len(rows), step, loads)
    return loads[:found, 0].tolist()


def in_memory(window: NeuronWindow, block: int) -> list[int]:
    return np.flatnonzero(window.slots_of(block) != NOWHERE).tolist()


masks = arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 20)))


@given(masks=st.tuples(masks, masks), steps=st.integers(0, 4))
def test_without_quotas_the_window_is_the_papers(masks: Any, steps: int) -> None:
    """With room for all, a step leaves the union of the last steps + 1 masks in memory, and reads
    what the steps + 1 masks before it lack, whatever other blocks do in between."""
    neurons = [mask.shape[1] for mask in masks]
    window = NeuronWindow(neurons, neurons, sum(neurons), steps)
    expected = [0, 0]
    for step in range(max(map(len, masks))):
        for block, mask in enumerate(masks):
            if step < len(mask):
                before = mask[max(0, step - steps - 1) : step].any(axis=0)
                misses = np.flatnonzero(mask[step] & ~before).tolist()
                assert wanted(window, block, np.flatnonzero(mask[step]), step) == misses
                expected[block] += len(misses)
                trim(window.address, block, step)
                union = mask[max(0, step - steps) : step + 1].any(axis=0)
                assert in_memory(window, block) == np.flatnonzero(union).tolist()
    assert window.state.misses.tolist() == expected
    assert window.state.hits.tolist() == [m.sum() - e for m, e in zip(masks, expected, strict=True)]


@given(mask=masks, quota=st.integers(0, 20))
def test_what_fits_is_what_was_used_last(mask: Any, quota: int) -> None:
    """A quota keeps the neurons used last, so a larger one keeps all that a smaller one does."""
    neurons = mask.shape[1]
    window = NeuronWindow([neurons], [quota], neurons)
    used = np.full(neurons, -1)
    for step, active in enumerate(mask):
        wanted(window, 0, np.flatnonzero(active), step)
        trim(window.address, 0, step)
        used[active] = step
        latest = np.lexsort((np.arange(neurons), used))[::-1][: min(quota, (used >= 0).sum())]
        assert in_memory(window, 0) == sorted(latest.tolist())


@pytest.mark.parametrize("quota", [0, 1, 30, 60, 61])
def test_memory_for_a_part_of_a_step_saves_that_part(quota: int) -> None:
    """Blocks that want the same neurons again find as many as their quotas keep, also where all of
    a step's do not fit: one list for all blocks would find none."""
    blocks, active = 4, np.arange(0, 180, 3)
    window = NeuronWindow([180] * blocks, [quota] * blocks, quota * blocks + 180)
    for step in range(5):
        for block in range(blocks):
            found = len(active) - len(wanted(window, block, active, step))
            assert found == (min(quota, len(active)) if step else 0)


@pytest.mark.parametrize("neurons", [[7], [5, 5], [4, 9, 2]])
def test_the_least_capacity_is_just_enough(neurons: list[int]) -> None:
    """With it, blocks that want all of their neurons in turn come to a pool with no slot left; a
    smaller pool is refused."""
    quota, pinned = [n // 2 for n in neurons], [n // 4 for n in neurons]
    needed = slots_needed(neurons, quota, pinned)
    window, least = NeuronWindow(neurons, quota, needed), needed
    for block, count in enumerate(pinned):
        window.pin(block, range(count))
    for step in range(2):
        for block, count in enumerate(neurons):
            wanted(window, block, range(count), step)
            assert in_memory(window, block) == list(range(count))
            least = min(least, window.state.now[FREE])
    assert least == 0
    unpinned = slots_needed(neurons, quota, [0] * len(neurons))
    with pytest.raises(ValueError, match=f"{unpinned - 1} slots are too few.* {unpinned} are"):
        NeuronWindow(neurons, quota, unpinned - 1)


def test_pinning_too_much_changes_nothing() -> None:
    """Neurons that do not fit, do not exist or are pinned are refused with one line."""
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


def test_kernels_see_a_blocks_slots_as_they_change() -> None:
    """A block's slots are one array for good, so a share's arguments may hold its address."""
    window = NeuronWindow([3, 5], [3, 5], 8)
    slots = window.slots_of(1)
    assert slots.dtype == np.int32
    assert slots.flags.c_contiguous
    wanted(window, 1, [0, 4], 0)
    assert (slots != NOWHERE).tolist() == [True, False, False, False, True]
    window.forget()
    assert (slots == NOWHERE).all()


@njit
def want_in_turn(window, rows, loads):
    for step in range(rows.shape[0]):
        want(window, 0, rows[step], rows.shape[1], step, loads)


def test_a_want_allocates_nothing() -> None:
    """A hundred of them ask Numba's runtime for no more memory than one."""
    _nrt_python.memsys_enable_stats()
    rows = np.sort(
        np.random.default_rng(0).permuted(np.tile(np.arange(64), (100, 1)), axis=1)[:, :9]
    )
    rows, loads = np.ascontiguousarray(rows, np.int32), np.zeros((64, 2), np.int32)
    found = []
    for count in (1, 1, 100):
        window = NeuronWindow([64], [20], 64)
        before = rtsys.get_allocation_stats().alloc
        want_in_turn(window.address, rows[:count], loads)
        found.append(rtsys.get_allocation_stats().alloc - before)
    assert found[2] == found[1]
    assert window.state.misses > 100
