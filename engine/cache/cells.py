"""The cells of a KV cache: which sequences and positions they hold.

A cell holds one token's keys and values in every block, and belongs to any number of sequences, so
that a shared prefix is stored once. Each sequence lists its cells in order of position; where a
cell lies never matters. Cells are freed when the last sequence drops them. Where a model is
recurrent, some have the state behind their token (states.py).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.cache.pages import Pages
from engine.cache.states import States
from engine.errors import EngineError

Array = np.ndarray[Any, np.dtype[np.int32]]
NOBODY = 2**31 - 1  # no position of a sequence that is not observed


class ContextFullError(EngineError, RuntimeError):
    """No free cells for the tokens of a step."""


class Cells:
    """`capacity` cells for up to `n_sequences` sequences. Where blocks have a `window`, they see so
    many tokens, the last itself included. Where they are recurrent, the model has `states`; where
    keys and values are in two bits, `pages`.

    Of a sequence whose cells a policy has evicted (engine/cache/eviction.py) all positions below
    `evicted` have gone or moved together; tokens from `observed_from` on say what is kept.
    """

    def __init__(
        self,
        capacity: int,
        n_sequences: int,
        window: int = 0,
        states: States | None = None,
        pages: Pages | None = None,
    ) -> None:
        self.capacity, self.n_sequences, self.window = capacity, n_sequences, window
        self.states, self.pages = states, pages
        self.positions = np.full(capacity, -1, np.int32)
        self.lists = np.zeros((n_sequences, capacity), np.int32)
        self.lengths = [0] * n_sequences
        self.evicted = [0] * n_sequences
        self.observed_from = [NOBODY] * n_sequences
        self._owners = np.zeros(capacity, np.int32)
        self.free = capacity
        self._stack = np.arange(capacity - 1, -1, -1, dtype=np.int32)  # the first `free` are free

    def of(self, sequence: int) -> Array:
        """The sequence's cells in order of position."""
        return self.lists[sequence, : self.lengths[sequence]]

    def positions_of(self, sequence: int) -> Array:
        return self.positions[self.of(sequence)]

    def next_position(self, sequence: int) -> int:
        """The position after the sequence's last."""
        length = self.lengths[sequence]
        return int(self.positions[self.lists[sequence, length - 1]]) + 1 if length else 0

    @property
    def given(self) -> dict[str, Array]:
        """What a step finds cells by, and their positions, as long as the model lasts; of a cache
        in two bits those of rows, and pages."""
        if self.pages:
            return {"lists": self.pages.lists, "cell_positions": self.pages.positions}
        return {"lists": self.lists, "cell_positions": self.positions}

    @property
    def rows(self) -> int:
        """Those of a cache of keys or values."""
        return self.pages.rows if self.pages else self.capacity

    def place(self, positions: Sequence[int], sequences: Sequence[Sequence[int]]) -> Array:
        """Cells int32 [tokens] for new tokens, each entered into all its sequences.

        On an error nothing changes.
        """
        count = len(positions)
        if count > self.free:
            raise ContextFullError(
                f"the context is full: {count} tokens want cells,"
                f" {self.free} of {self.capacity} are free"
            )
        self._demand_vacant(positions, sequences)
        self.free -= count
        cells = self._stack[self.free : self.free + count][::-1].copy()
        self.positions[cells] = positions
        for cell, position, owners in zip(cells, positions, sequences, strict=True):
            for sequence in owners:
                self._enter(sequence, int(cell), position)
        return cells

    def take_back(self, positions: Sequence[int], sequences: Sequence[Sequence[int]]) -> None:
        """Undo `place`."""
        placed = sorted(zip(positions, sequences, strict=True), key=lambda it: it[0], reverse=True)
        for position, owners in placed:
            for sequence in owners:
                self.remove(sequence, position, position + 1)

    def _demand_vacant(self, positions: Sequence[int], sequences: Sequence[Sequence[int]]) -> None:
        """No token stands at a position that one of its sequences has already."""
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

    def _enter(self, sequence: int, cell: int, position: int) -> None:
        length = self.lengths[sequence]
        row = self.lists[sequence]
        at = length
        if length and self.positions[row[length - 1]] >= position:
            at = int(np.searchsorted(self.positions_of(sequence), position))
            row[at + 1 : length + 1] = row[at:length].copy()
        row[at] = cell
        self.lengths[sequence] = length + 1
        self._owners[cell] += 1

    def spans(self, positions: Sequence[int], sequences: Sequence[Sequence[int]]) -> Array:
        """int32 [tokens, 3]: the part of a list that each token sees, itself included."""
        spans = np.zeros((len(positions), 3), np.int32)
        for t, (position, owners) in enumerate(zip(positions, sequences, strict=True)):
            sequence = owners[0]
            end = self.lengths[sequence]
            if self.positions[self.lists[sequence, end - 1]] != position:
                end = int(np.searchsorted(self.positions_of(sequence), position, side="right"))
            spans[t] = sequence, 0, end
        return spans

    def routes(self, cells: Array, spans: Array) -> tuple[Array, Array, Array]:
        """The order in which new tokens, which see these spans, are run, where in it their states
        come from, and where they go to (states.py)."""
        assert self.states
        sequences, _, ends = spans.T
        before = np.where(ends > 1, self.lists[sequences, ends - 2], -1)
        last = [int(self.of(s)[-1]) for s in range(self.n_sequences) if self.lengths[s]]
        return self.states.routes(cells.tolist(), before.tolist(), last)

    def observed(self, spans: Array, positions: Sequence[int]) -> Array:
        """int32 [tokens, 3]: the spans of tokens at these positions that observe, and for others
        empty ones."""
        seen = spans.copy()
        first = np.array(self.observed_from)[spans[:, 0]]
        seen[np.asarray(positions) < first, 2] = 0
        return seen

    def wanted_to_keep(self, sequence: int, count: int) -> int:
        """How many free cells it takes to move `count` of a sequence's cells together."""
        return count if (self._owners[self.of(sequence)[:count]] > 1).any() else 0

    def room_for_kept(self, sequence: int, count: int) -> Array:
        """Where `count` of a sequence's cells are to move together: into its first ones, or where
        those are another sequence's, too, into free ones."""
        if not (wanted := self.wanted_to_keep(sequence, count)):
            return self.of(sequence)[:count].copy()
        if wanted > self.free:
            raise ContextFullError(
                f"the context is full: what is kept of a shared text wants {count} cells,"
                f" {self.free} of {self.capacity} are free"
            )
        return self._stack[self.free - count : self.free][::-1].copy()

    def keep(self, sequence: int, into: Array) -> None:
        """Let the sequence have these cells of `room_for_kept` alone, into which what it keeps has
        moved; they stand just below its next position."""
        cells, end = self.of(sequence).copy(), self.next_position(sequence)
        if into[0] != cells[0]:
            self.free -= len(into)
        self._owners[into] += 1
        self._owners[cells] -= 1
        self._let_go(cells[self._owners[cells] == 0])
        self.lists[sequence, : len(into)] = into
        self.lengths[sequence] = len(into)
        self.positions[into] = np.arange(end - len(into), end)
        self.evicted[sequence] = end

    def reach(self, sequence: int, end: int) -> int:
        """The last position up to `end` from which the sequence can be gone on with: `end` itself,
        or none within what was evicted or what has to be observed, or where a model is recurrent
        that behind the last token before it whose state is kept."""
        if self.evicted[sequence]:
            return end if end >= self.evicted[sequence] else 0
        if self.pages:
            return end if self.pages.can_go_on(self.of(sequence)[:end]) else 0
        end = min(end, self.observed_from[sequence])
        if not self.states:
            return end
        for cell in self.of(sequence)[::-1].tolist():
            position = int(self.positions[cell]) + 1
            if position <= end and cell in self.states:
                return position
        return 0

    def windowed(self, spans: Array, positions: Sequence[int]) -> Array:
        """int32 [tokens, 3]: the spans of tokens at these positions, cut to the window."""
        cut = spans.copy()
        for t, (sequence, _, end) in enumerate(spans.tolist()):
            begin = max(0, end - self.window)  # or later, where positions are missing
            reached = self.positions[self.lists[sequence, begin:end]]
            cut[t, 1] = begin + np.searchsorted(reached, positions[t] - self.window, side="right")
        return cut

    def copy(self, source: int, target: int, end: int | None = None) -> None:
        """Let `target`, which must be empty, share the source's cells below position `end`."""
        if self.lengths[target]:
            raise ValueError(f"sequence {target} is not empty")
        cells = self.of(source)
        if end is not None:
            cells = cells[self.positions[cells] < end]
        self.lists[target, : len(cells)] = cells
        self.lengths[target] = len(cells)
        self.evicted[target] = self.evicted[source]
        self._owners[cells] += 1

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Drop the sequence's cells with positions in [begin, end)."""
        cells = self.of(sequence)
        positions = self.positions[cells]
        gone = positions >= begin
        if end is not None:
            gone &= positions < end
        dropped, kept = cells[gone].copy(), cells[~gone].copy()
        if gone.any() and begin < self.evicted[sequence] and len(kept):
            raise ValueError(
                f"positions from {begin} on cannot be dropped alone: up to"
                f" {self.evicted[sequence]} cells were evicted"
            )
        if not len(kept):
            self.evicted[sequence] = 0
        inside = gone.any() and gone.argmax() + len(dropped) < len(cells)
        if (self.states or self.pages) and inside:
            why = "a recurrent model has read" if self.states else "are packed"
            raise ValueError(
                f"positions from {begin} on cannot be dropped without those after them, which {why}"
                " with them"
            )
        self.lists[sequence, : len(kept)] = kept
        self.lengths[sequence] = len(kept)
        self._owners[dropped] -= 1
        self._let_go(dropped[self._owners[dropped] == 0])

    def _let_go(self, cells: Array) -> None:
        """Nobody has these any more."""
        freed = cells[::-1]
        self.positions[freed] = -1
        if self.states:
            self.states.drop(freed.tolist())
        if self.pages:
            self.pages.drop(freed)
        self._stack[self.free : self.free + len(freed)] = freed
        self.free += len(freed)

    def clear(self) -> None:
        """Forget every sequence."""
        for sequence in range(self.n_sequences):
            self.remove(sequence)
