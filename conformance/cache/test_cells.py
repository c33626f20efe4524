"""`Cells` compared with the simplest model: a dict from position to cell."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.cache.cells import Cells, ContextFullError

SEQUENCES, WINDOW = 4, 5
sequence = st.integers(0, SEQUENCES - 1)
position = st.integers(0, 12)


class CellsModel(RuleBasedStateMachine):
    """After any sequence of operations `Cells` equals one dict a sequence."""

    @initialize(capacity=st.integers(0, 17))
    def start(self, capacity: int) -> None:
        self.cells = Cells(capacity, SEQUENCES, WINDOW)
        self.plain: list[dict[int, int]] = [{} for _ in range(SEQUENCES)]

    def used(self) -> set[int]:
        return {cell for held in self.plain for cell in held.values()}

    @rule(start=position, count=st.integers(0, 6), owners=st.sets(sequence, min_size=1))
    def place(self, start: int, count: int, owners: set[int]) -> None:
        """Consecutive tokens of some sequences, before, between or after those they have."""
        taken = set().union(*(self.plain[s] for s in owners))
        positions = [p for p in range(start, start + count) if p not in taken]
        before = self.used()
        if len(positions) > self.cells.capacity - len(before):
            with pytest.raises(ContextFullError, match="the context is full"):
                self.cells.place(positions, [sorted(owners)] * len(positions))
            return
        placed = self.cells.place(positions, [sorted(owners)] * len(positions)).tolist()
        assert len(set(placed)) == len(placed)
        assert not before & set(placed)
        for owner in owners:
            self.plain[owner] |= dict(zip(positions, placed, strict=True))

    @rule(start=st.integers(0, 30), count=st.integers(0, 6), owners=st.sets(sequence, min_size=1))
    def place_and_take_back(self, start: int, count: int, owners: set[int]) -> None:
        """Tokens that are taken back leave no trace, wherever they were."""
        taken = set().union(*(self.plain[s] for s in owners))
        positions = [p for p in range(start, start + count) if p not in taken]
        if len(positions) <= self.cells.free:
            placed = positions, [sorted(owners)] * len(positions)
            self.cells.place(*placed)
            self.cells.unplace(*placed)

    @precondition(lambda self: any(self.plain))
    @rule(data=st.data())
    def place_twice(self, data: st.DataObject) -> None:
        """A position that a sequence already has is refused, and nothing changes."""
        owner = data.draw(st.sampled_from([s for s, held in enumerate(self.plain) if held]))
        taken = data.draw(st.sampled_from(sorted(self.plain[owner])))
        if self.cells.free:
            with pytest.raises(ValueError, match="already has position"):
                self.cells.place([taken], [(owner,)])

    @rule(owner=sequence, start=st.integers(20, 30))
    def place_one_position_twice(self, owner: int, start: int) -> None:
        """Two tokens of one step at the same position of one sequence are refused as well."""
        if self.cells.free >= 2 and start >= self.cells.next_position(owner):
            with pytest.raises(ValueError, match="already has position"):
                self.cells.place([start, start], [(owner,)] * 2)

    @rule(source=sequence, other=sequence, end=st.none() | position)
    def copy(self, source: int, other: int, end: int | None) -> None:
        if self.plain[other]:
            with pytest.raises(ValueError, match="is not empty"):
                self.cells.copy(source, other, end)
            return
        self.cells.copy(source, other, end)
        held = self.plain[source].items()
        self.plain[other] = {p: cell for p, cell in held if end is None or p < end}

    @rule(owner=sequence, begin=position, end=st.none() | position)
    def remove(self, owner: int, begin: int, end: int | None) -> None:
        self.cells.remove(owner, begin, end)
        held = self.plain[owner].items()
        self.plain[owner] = {
            p: cell for p, cell in held if p < begin or (end is not None and p >= end)
        }

    @rule()
    def clear(self) -> None:
        self.cells.clear()
        self.plain = [{} for _ in range(SEQUENCES)]

    @invariant()
    def lists_are_in_order_of_position(self) -> None:
        for owner, held in enumerate(self.plain):
            expected = [held[p] for p in sorted(held)]
            assert self.cells.list_of(owner).tolist() == expected
            assert self.cells.positions_of(owner).tolist() == sorted(held)
            assert self.cells.next_position(owner) == max(held, default=-1) + 1

    @invariant()
    def cells_are_free_when_nobody_has_them(self) -> None:
        used = self.used()
        assert self.cells.free == self.cells.capacity - len(used)
        nobodys = [c for c in range(self.cells.capacity) if c not in used]
        assert (self.cells.positions[nobodys] == -1).all()

    @invariant()
    def spans_end_with_the_token_itself(self) -> None:
        """A token sees the part of its first sequence up to itself; a window counts positions,
        missing ones included."""
        for owner, held in enumerate(self.plain):
            positions = sorted(held)
            spans = self.cells.spans(positions, [(owner,)] * len(positions))
            assert spans.dtype == np.int32
            for span, p in zip(spans.tolist(), positions, strict=True):
                assert span == [owner, 0, sum(q <= p for q in positions)]

            cut = self.cells.cut_to_window(spans, positions)
            assert (cut[:, [0, 2]] == spans[:, [0, 2]]).all()
            for begin, p in zip(cut[:, 1].tolist(), positions, strict=True):
                assert begin == sum(q <= p - WINDOW for q in positions)


TestCells = CellsModel.TestCase
TestCells.settings = settings(stateful_step_count=30)
