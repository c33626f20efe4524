"""A cache of which all but the latest tokens of each text are in two bits (docs/decisions/043).

A token has a cell as ever, which says where its text has it. Its keys and values are in a row of
float16 at first. Once 32 tokens, counted from the text's beginning, all have at least `residual`
younger ones, a step packs them into a page; their rows are free when no text needs them any more. A
page belongs to whoever has the cell of its last token. Which pages a token sees depends on its
place in the text alone, so that neither chunks nor company change a bit.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.cache.method import Step
from engine.cache.paged import Paged
from engine.cache.rows import NONE, Rows
from engine.errors import EngineError
from reference.formats.kivi import GROUP

Array = np.ndarray[Any, np.dtype[np.int32]]

BACK = 2 * GROUP  # rows that a text keeps beyond those it needs, so as to be taken back a little


class PackedError(EngineError, RuntimeError):
    """A token that would go on from what is in two bits, and was not when it was read."""


class TwoBits(Paged):
    """Rows and pages for `capacity` cells of up to `n_sequences` sequences, in steps of at most
    `tokens`. What a step is given is in `lists` (rows by sequence, from the first one that some
    token of the step sees), `positions` (by row) and `page_lists`."""

    def __init__(self, capacity: int, n_sequences: int, tokens: int, residual: int) -> None:
        super().__init__(capacity, n_sequences, GROUP, -(-capacity // GROUP))
        self.residual = residual
        self._rows = Rows(rows_for(capacity, n_sequences, tokens, residual), capacity)
        self.lists = np.zeros((n_sequences, self._rows.count), np.int32)
        self.positions = np.zeros(self._rows.count, np.int32)
        self.row_of = self._rows.of

    @property
    def rows(self) -> int:
        return self._rows.count

    @property
    def given(self) -> dict[str, Array]:
        return {"lists": self.lists, "cell_positions": self.positions}

    def held(self, block: int) -> int:  # noqa: ARG002
        return self._rows.held

    def pages_seen(self, ends: Any) -> Any:
        """How many pages tokens see that are the last of so many of their text."""
        return np.maximum(0, np.asarray(ends) - self.residual) // GROUP

    def before(self) -> None:
        """Let rows go that no text needs to go on, or to be taken back by GROUP tokens; what the
        step before packed stays."""
        super().before()
        needed = np.zeros(len(self.row_of), bool)
        for sequence, length in enumerate(self.cells.lengths):
            if length:
                first = max(0, GROUP * int(self.pages_seen(length)) - BACK)
                needed[self.cells.of(sequence)[first:]] = True
        self._rows.keep(needed)

    def inputs(self, step: Step) -> dict[str, Array]:
        """The new cells' rows, the spans as parts of `lists`, how many pages each token sees, and
        the page into which the group before its span is to be packed. Rows and lists are
        written."""
        cells, chosen, spans = self.cells, step.cells, step.spans
        sequences, _, ends = spans.T
        if (strange := cells.positions[chosen] != ends - 1).any():
            at = int(strange.argmax())
            raise PackedError(
                f"position {cells.positions[chosen[at]]} is the {ends[at]}th of its text, by which"
                " tokens are packed: leave none out"
            )
        self._hold(chosen, cells.positions[chosen])
        packed, before = self.pages_seen(ends), self.pages_seen(ends - 1)
        begins, into = np.zeros(len(spans), np.int32), np.full(len(spans), NONE, np.int32)
        for sequence in np.unique(sequences).tolist():
            own = np.flatnonzero(sequences == sequence)
            first, last = int(ends[own].min()), int(ends[own].max())
            start = GROUP * int(self.pages_seen(first - 1))
            rows = self.row_of[cells.lists[sequence, start:last]]
            for t in own[packed[own] > before[own]].tolist():
                into[t] = self._page(int(cells.lists[sequence, GROUP * packed[t] - 1]))
            pages = self.pages_of(cells.lists[sequence, :last], {})
            if (rows < 0).any() or (pages < 0).any():
                raise PackedError(
                    f"position {first - 1} goes on from tokens that are in two bits: read the text"
                    " anew"
                )
            self.lists[sequence, : len(rows)] = rows
            self.page_lists[sequence, : len(pages)] = pages
            begins[own] = start
        where = GROUP * packed - begins
        seen = np.stack([sequences, where, ends - begins], axis=1)
        return {"cells": self.row_of[chosen], "spans": seen, "packed": packed, "into": into}

    def reach(self, sequence: int, end: int) -> int:
        """None where what follows wants rows that are gone."""
        listed = self.cells.of(sequence)[:end]
        start = GROUP * int(self.pages_seen(len(listed)))
        return end if (self.row_of[listed[start:]] >= 0).all() else 0

    def removed(self, sequence: int, begin: int, gone: Array) -> None:  # noqa: ARG002
        if gone.any() and not gone[gone.argmax() :].all():
            raise ValueError(
                f"positions from {begin} on cannot be dropped without those after them, which are"
                " packed with them"
            )

    def session_fields(self, cells: Array) -> dict[str, Any]:
        """The first cell that has a row, as all behind it do."""
        self.before()
        lacking = np.flatnonzero(self.row_of[cells] < 0)
        return {"first": int(lacking[-1]) + 1 if len(lacking) else 0}

    def rows_of(self, cells: Array, block: int, fields: Mapping[str, Any]) -> Array:  # noqa: ARG002
        return self.row_of[cells[fields["first"] :]]

    def pages_of(self, cells: Array, fields: Mapping[str, Any]) -> Array:  # noqa: ARG002
        return self.page_of[self._ends(cells, int(self.pages_seen(len(cells))))]

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:
        first = header["first"]
        self._hold(cells[first:], np.arange(first, len(cells), dtype=np.int32))
        for cell in self._ends(cells, int(self.pages_seen(len(cells)))).tolist():
            self._page(cell)

    def freed(self, cells: Array) -> None:
        self._rows.let_go(cells)
        super().freed(cells)

    def _hold(self, chosen: Array, positions: Array) -> None:
        self.positions[self._rows.hold(chosen)] = positions


def rows_for(capacity: int, n_sequences: int, tokens: int, residual: int) -> int:
    """As many as sequences keep between two steps, and a step's tokens."""
    return min(capacity, n_sequences * (residual + GROUP - 1 + BACK) + tokens)
