"""Which neurons are in memory, against the plainest model there is: an OrderedDict a block."""

import signal
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numba import njit

from conformance.mutants.mutate import mutants
from kernels.cpu import neuron_window
from kernels.cpu.neuron_window import BLOCK, FOREVER, FREE, NOWHERE, NeuronWindow, want

SOURCE = Path(neuron_window.__file__).read_text()
UNTOUCHED = -7
blocks = st.integers(0, 2)


@st.composite
def some_of(draw: st.DrawFn, neurons: int) -> list[int]:
    """None, all, or some of so many neurons, ascending."""
    some = st.sets(st.integers(0, max(neurons - 1, 0)), max_size=neurons).map(sorted)
    return draw(st.just([]) | st.just([*range(neurons)]) | some)


class AgainstDicts(RuleBasedStateMachine):
    """Any order of calls leaves a window saying what one OrderedDict a block says, of the step in
    which each neuron was used last, least recently used first."""

    compiled: Any = neuron_window

    def handle(self) -> Any:
        """What the calls take for the window."""
        return self.window.address

    @initialize(
        data=st.data(),
        neurons=st.lists(st.integers(0, 9), min_size=3, max_size=3),
        quota=st.lists(st.integers(0, 10), min_size=3, max_size=3),
        steps=st.sampled_from([0, 1, 2, 3, FOREVER]),
        spare=st.integers(0, 2),
    )
    def start(
        self, data: st.DataObject, neurons: list[int], quota: list[int], steps: int, spare: int
    ) -> None:
        self.neurons, self.quota, self.steps = neurons, quota, steps
        wanted = [data.draw(some_of(n)) for n in neurons]
        rest = [n - len(w) for n, w in zip(neurons, wanted, strict=True)]
        kept = [min(q, r) for q, r in zip(quota, rest, strict=True)]
        most = [sum(kept) - k + r for k, r in zip(kept, rest, strict=True)]
        before_pinning = [sum(map(min, quota, neurons)) - min(q, n) + n for q, n in zip(quota, neurons, strict=True)]
        capacity = max(sum(map(len, wanted)) + max(most), *before_pinning) + spare
        self.window = self.compiled.NeuronWindow(neurons, quota, capacity, steps)
        self.pinned: list[list[int]] = [[], [], []]
        self.forgotten()
        self.step, self.hits, self.misses = 0, [0, 0, 0], [0, 0, 0]
        for block, rows in enumerate(wanted):
            self.pin(block, rows)

    def forgotten(self) -> None:
        self.held: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(3)]
        self.last: tuple[int, int] | None = None

    def pin(self, block: int, rows: list[int]) -> None:
        loads = self.window.pin(block, rows)
        assert loads[:, 0].tolist() == rows
        assert loads[:, 1].tolist() == self.window.slots_of(block)[rows].tolist()
        self.pinned[block] = rows

    def trimmed(self, block: int, step: int) -> None:
        held = self.held[block]
        while held and (len(held) > self.quota[block] or next(iter(held.values())) < step - self.steps):
            held.popitem(last=False)

    @rule(data=st.data(), block=blocks, later=st.integers(0, 4))
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
        found = self.compiled.want(self.handle(), block, padded, len(rows), self.step, loads)
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

    @rule(block=blocks, later=st.integers(0, 4))
    def trim(self, block: int, later: int) -> None:
        self.compiled.trim(self.handle(), block, self.step + later)
        self.trimmed(block, self.step + later)

    @rule(everything=st.booleans())
    def forget(self, everything: bool) -> None:
        """After which pinned neurons are pinned anew, if those were forgotten too."""
        self.compiled.forget(self.handle(), everything)
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
