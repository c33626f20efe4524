"""A neuron window compared with a model of it in dicts."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernels.cpu.runtime import neuron_window
from kernels.cpu.runtime.neuron_window import NOWHERE

BLOCKS = 3
UNTOUCHED = -7
blocks = st.integers(0, BLOCKS - 1)
quotas = st.just(0) | st.integers(0, 4)  # without quotas a pool is soon full


@st.composite
def some_of(draw: st.DrawFn, neurons: int) -> list[int]:
    """None, all, or some of these neurons, ascending."""
    some = st.sets(st.integers(0, max(neurons - 1, 0)), max_size=neurons).map(sorted)
    return draw(st.just([]) | st.just([*range(neurons)]) | some)


class AgainstDicts(RuleBasedStateMachine):
    """For any sequence of calls a window equals an OrderedDict for each block, of the step in which
    each neuron was last used, least recently used first."""

    tried: Any = neuron_window

    def handle(self) -> Any:
        """The window's handle, which calls take."""
        return self.window.address

    @initialize(
        data=st.data(),
        neurons=st.lists(st.integers(0, 9), min_size=BLOCKS, max_size=BLOCKS),
        quota=st.lists(quotas, min_size=BLOCKS, max_size=BLOCKS),
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
        self.neurons, self.quota = neurons, quota
        self.steps = np.inf if steps is None else steps
        pinned = [data.draw(st.just([]) | some_of(n)) for n in neurons]
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

    def pin(self, block: int, rows: list[int]) -> None:
        loads = self.window.pin(block, rows)
        assert loads[:, 0].tolist() == rows
        assert loads[:, 1].tolist() == self.window.slots_of(block)[rows].tolist()
        self.pinned[block] = rows

    def is_full(self) -> bool:
        return sum(map(len, [*self.held, *self.pinned])) == self.window.capacity

    def with_more_than_its_quota(self, block: int) -> OrderedDict[int, int]:
        """The neurons of the nearest earlier block that can give some up."""
        before = [*range(block)[::-1], *range(block + 1, BLOCKS)[::-1]]
        return next(self.held[b] for b in before if len(self.held[b]) > self.quota[b])

    @rule(data=st.data(), later=st.integers(0, 2))
    def want_of_all(self, data: st.DataObject, later: int) -> None:
        """Block by block, as a model does."""
        self.step += later
        for block in range(BLOCKS):
            self.want(block, data.draw(some_of(self.neurons[block])))

    @rule(data=st.data(), block=blocks, later=st.integers(0, 2))
    def want_of_any(self, data: st.DataObject, block: int, later: int) -> None:
        self.step += later
        self.want(block, data.draw(some_of(self.neurons[block])))

    def want(self, block: int, rows: list[int]) -> None:
        """Misses get slots, hits keep theirs, and all requested neurons are in memory."""
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
                if row not in held and self.is_full():
                    self.with_more_than_its_quota(block).popitem(last=False)
                held[row] = self.step
                held.move_to_end(row)
        while held and self.step - next(iter(held.values())) > self.steps:
            held.popitem(last=False)
        self.hits[block] += len(hit)
        self.misses[block] += len(missed)

    @rule(everything=st.booleans())
    def forget(self, everything: bool) -> None:
        """Pinned neurons are pinned anew afterwards, if they were dropped too."""
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
        free = s.free[1 : 1 + s.free[0]].tolist()
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
