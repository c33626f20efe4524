"""Cells of the KV cache: their sequences and positions.

A cell holds one token's keys and values in every block, and belongs to any number of sequences, so
that a shared prefix is stored once. Each sequence lists its cells in order of position; the order
of cells in memory does not matter. Cells are freed when the last sequence drops them. In a
recurrent model some cells have a state, that after their token (states.py).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.cache.method import CacheMethod
from engine.cache.states import States
from engine.errors import EngineError

Array = np.ndarray[Any, np.dtype[np.int32]]


class ContextFullError(EngineError, RuntimeError):
    """Not enough free cells for the tokens of a step."""


class Cells:
    """`capacity` cells for up to `n_sequences` sequences. `window` is the size of sliding-window
    attention, the token itself included. Recurrent models have `states`.

    The `method` (method.py) is notified of changes to sequences; it may keep or read only a part.
    """

    def __init__(
        self,
        capacity: int,
        n_sequences: int,
        window: int = 0,
        states: States | None = None,
        method: CacheMethod | None = None,
    ) -> None:
        self.capacity, self.n_sequences, self.window = capacity, n_sequences, window
        self.states, self.method = states, method or CacheMethod()
        self.method.cells = self
        self.positions = np.full(capacity, -1, np.int32)
        self.lists = np.zeros((n_sequences, capacity), np.int32)
        self.lengths = [0] * n_sequences
        self._owners = np.zeros(capacity, np.int32)
        self.free = capacity
        self._stack = np.arange(capacity - 1, -1, -1, dtype=np.int32)  # the first `free` are unused

    def list_of(self, sequence: int) -> Array:
        """The sequence's cells in order of position."""
        return self.lists[sequence, : self.lengths[sequence]]

    def positions_of(self, sequence: int) -> Array:
        return self.positions[self.list_of(sequence)]

    def next_position(self, sequence: int) -> int:
        """The position after the sequence's last."""
        length = self.lengths[sequence]
        return int(self.positions[self.lists[sequence, length - 1]]) + 1 if length else 0

    def place(self, positions: Sequence[int], sequences: Sequence[Sequence[int]]) -> Array:
        """Allocate cells int32 [tokens] for new tokens and add them to their sequences.

        On error nothing changes.
        """
        count = len(positions)
        if count > self.free:
            raise ContextFullError(
                f"the context is full: {count} tokens need cells,"
                f" {self.free} of {self.capacity} are free"
            )
        self._check_vacant(positions, sequences)
        self.free -= count
        cells = self._stack[self.free : self.free + count][::-1].copy()
        self.positions[cells] = positions
        for cell, position, owners in zip(cells, positions, sequences, strict=True):
            for sequence in owners:
                self._insert(sequence, int(cell), position)
        return cells

    def unplace(self, positions: Sequence[int], sequences: Sequence[Sequence[int]]) -> None:
        """Undo `place`."""
        placed = sorted(zip(positions, sequences, strict=True), key=lambda it: it[0], reverse=True)
        for position, owners in placed:
            for sequence in owners:
                self.remove(sequence, position, position + 1)

    def _check_vacant(self, positions: Sequence[int], sequences: Sequence[Sequence[int]]) -> None:
        """Raise if a sequence already has a token at one of the positions."""
        seen: set[tuple[int, int]] = set()
        for position, owners in zip(positions, sequences, strict=True):
            if not owners:
                raise ValueError(f"the token at position {position} belongs to no sequence")
            for sequence in owners:
                if not 0 <= sequence < self.n_sequences:
                    raise ValueError(f"there is no sequence {sequence}, only {self.n_sequences}")
                held = position < self.next_position(sequence)
                if (held and position in self.positions_of(sequence)) or (
                    sequence,
                    position,
                ) in seen:
                    raise ValueError(f"sequence {sequence} already has position {position}")
                if self.states and position < self.next_position(sequence):
                    raise ValueError(
                        f"position {position} of sequence {sequence} comes after later ones, which"
                        " a recurrent model has read without it"
                    )
                seen.add((sequence, position))

    def _insert(self, sequence: int, cell: int, position: int) -> None:
        length = self.lengths[sequence]
        row = self.lists[sequence]
        at = length
        if length and self.positions[row[length - 1]] >= position:
            at = int(np.searchsorted(self.positions_of(sequence), position))
            row[at + 1 : length + 1] = row[at:length].copy()
            self.method.on_move(sequence, at)
        row[at] = cell
        self.lengths[sequence] = length + 1
        self._owners[cell] += 1

    def spans(self, positions: Sequence[int], sequences: Sequence[Sequence[int]]) -> Array:
        """Spans int32 [tokens, 3]: sequence, begin and end of the cells in its list that each token
        attends to, itself included."""
        spans = np.zeros((len(positions), 3), np.int32)
        for t, (position, owners) in enumerate(zip(positions, sequences, strict=True)):
            sequence = owners[0]
            end = self.lengths[sequence]
            if self.positions[self.lists[sequence, end - 1]] != position:
                end = int(np.searchsorted(self.positions_of(sequence), position, side="right"))
            spans[t] = sequence, 0, end
        return spans

    def state_routes(self, cells: Array, spans: Array) -> tuple[Array, Array, Array]:
        """For new tokens with these spans: execution order, and the slots that their states are
        read from and written to (states.py)."""
        assert self.states
        sequences, _, ends = spans.T
        before = np.where(ends > 1, self.lists[sequences, ends - 2], -1)
        last = [int(self.list_of(s)[-1]) for s in range(self.n_sequences) if self.lengths[s]]
        return self.states.routes(cells.tolist(), before.tolist(), last)

    def cells_to_compact(self, sequence: int, count: int) -> int:
        """Number of free cells needed to compact `count` of a sequence's cells."""
        return count if (self._owners[self.list_of(sequence)[-count:]] > 1).any() else 0

    def compaction_targets(self, sequence: int, count: int) -> Array:
        """Target cells for compacting `count` of a sequence's cells: its last ones, or free ones if
        those are shared with another sequence."""
        if not (wanted := self.cells_to_compact(sequence, count)):
            return self.list_of(sequence)[-count:].copy()
        if wanted > self.free:
            raise ContextFullError(
                f"the context is full: eviction from a shared text needs {count} cells,"
                f" {self.free} of {self.capacity} are free"
            )
        return self._stack[self.free - count : self.free][::-1].copy()

    def compact(self, sequence: int, into: Array) -> None:
        """Make these `compaction_targets`, to which the kept rows were moved, the sequence's only
        cells; their positions are the last ones before its next position."""
        cells, end = self.list_of(sequence).copy(), self.next_position(sequence)
        if into[-1] != cells[-1]:
            self.free -= len(into)
        self._owners[into] += 1
        self._owners[cells] -= 1
        self._free_cells(cells[self._owners[cells] == 0])
        self.lists[sequence, : len(into)] = into
        self.lengths[sequence] = len(into)
        self.positions[into] = np.arange(end - len(into), end)

    def reach(self, sequence: int, end: int) -> int:
        """The last position up to `end` from which the sequence can be continued: `end` itself, or
        as the method limits it; in a recurrent model, one after a token with a kept state."""
        end = self.method.reach(sequence, end)
        if not self.states:
            return end
        for cell in self.list_of(sequence)[::-1].tolist():
            position = int(self.positions[cell]) + 1
            if position <= end and cell in self.states:
                return position
        return 0

    def cut_to_window(self, spans: Array, positions: Sequence[int]) -> Array:
        """Spans int32 [tokens, 3] of tokens at these positions, cut to the sliding window."""
        cut = spans.copy()
        for t, (sequence, _, end) in enumerate(spans.tolist()):
            begin = max(0, end - self.window)  # or later, if positions are missing
            reached = self.positions[self.lists[sequence, begin:end]]
            cut[t, 1] = begin + np.searchsorted(reached, positions[t] - self.window, side="right")
        return cut

    def copy(self, source: int, target: int, end: int | None = None) -> None:
        """Share the source's cells below position `end` with `target`, which must be empty."""
        if self.lengths[target]:
            raise ValueError(f"sequence {target} is not empty")
        cells = self.list_of(source)
        if end is not None:
            cells = cells[self.positions[cells] < end]
        self.lists[target, : len(cells)] = cells
        self.lengths[target] = len(cells)
        self.method.on_copy(source, target, len(cells))
        self._owners[cells] += 1

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Drop the sequence's cells with positions in [begin, end)."""
        cells = self.list_of(sequence)
        positions = self.positions[cells]
        gone = positions >= begin
        if end is not None:
            gone &= positions < end
        dropped, kept = cells[gone].copy(), cells[~gone].copy()
        if self.states and gone.any() and gone.argmax() + len(dropped) < len(cells):
            raise ValueError(
                f"positions from {begin} on cannot be dropped without those after them, which a"
                " recurrent model has read with them"
            )
        self.method.on_remove(sequence, begin, gone)
        self.lists[sequence, : len(kept)] = kept
        self.lengths[sequence] = len(kept)
        self._owners[dropped] -= 1
        self._free_cells(dropped[self._owners[dropped] == 0])

    def _free_cells(self, cells: Array) -> None:
        """Free cells that have no owner."""
        freed = cells[::-1]
        self.positions[freed] = -1
        if self.states:
            self.states.free(freed.tolist())
        self.method.on_free(freed)
        self._stack[self.free : self.free + len(freed)] = freed
        self.free += len(freed)

    def clear(self) -> None:
        """Clear all sequences."""
        for sequence in range(self.n_sequences):
            self.remove(sequence)
        self.method.on_clear()
