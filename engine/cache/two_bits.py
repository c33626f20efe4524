"""KIVI: all but the latest tokens of each text are quantized to two bits (docs/decisions/043).

A token has a cell as usual, which gives its place in the text. Its keys and values are first stored
in a float16 row. Once all 32 tokens of a group, counted from the text's beginning, have at least
`residual` later ones, a step packs them into a page; their rows are freed when no text needs them.
A page belongs to the cell of its last token. Which pages a token attends to depends only on its
position in the text, so chunking and batching do not change results.
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

ROLLBACK = 2 * GROUP  # extra rows per text, for rollback


class PackedError(EngineError, RuntimeError):
    """A token would attend to rows that have been packed and released."""


class TwoBits(Paged):
    """Rows and pages for `capacity` cells of up to `n_sequences` sequences, in steps of at most
    `tokens`. A step's inputs are `lists` (rows by sequence, from the first one that a token of the
    step attends to), `positions` (by row) and `page_lists`."""

    def __init__(self, capacity: int, n_sequences: int, tokens: int, residual: int) -> None:
        super().__init__(capacity, n_sequences, GROUP, -(-capacity // GROUP))
        self.residual = residual
        self._rows = Rows(rows_for(capacity, n_sequences, tokens, residual), capacity)
        self.lists = np.zeros((n_sequences, self._rows.count), np.int32)
        self.positions = np.zeros(self._rows.count, np.int32)
        self.row_of = self._rows.row_of

    @property
    def rows(self) -> int:
        return self._rows.count

    @property
    def persistent_inputs(self) -> dict[str, Array]:
        return {"lists": self.lists, "cell_positions": self.positions}

    def held(self, block: int) -> int:  # noqa: ARG002
        return self._rows.held

    def pages_seen(self, ends: Any) -> Any:
        """Number of pages that tokens attend to, by their index + 1 in the text (`ends`)."""
        return np.maximum(0, np.asarray(ends) - self.residual) // GROUP

    def before_step(self) -> None:
        """Free rows that no text needs, even after a rollback by GROUP tokens; pages packed in the
        last step stay."""
        super().before_step()
        needed = np.zeros(len(self.row_of), bool)
        for sequence, length in enumerate(self.cells.lengths):
            if length:
                first = max(0, GROUP * int(self.pages_seen(length)) - ROLLBACK)
                needed[self.cells.list_of(sequence)[first:]] = True
        self._rows.retain(needed)

    def inputs(self, step: Step) -> dict[str, Array]:
        """The new cells' rows, spans in `lists`, the number of pages for each token, and the page
        into which it packs the group before its span. Rows are allocated and lists filled."""
        cells, chosen, spans = self.cells, step.cells, step.spans
        sequences, _, ends = spans.T
        if (strange := cells.positions[chosen] != ends - 1).any():
            at = int(strange.argmax())
            raise PackedError(
                f"position {cells.positions[chosen[at]]} is number {ends[at]} of its text: packing"
                " needs positions without gaps"
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
                into[t] = self._allocate_page(int(cells.lists[sequence, GROUP * packed[t] - 1]))
            pages = self.pages_of(cells.lists[sequence, :last], {})
            if (rows < 0).any() or (pages < 0).any():
                raise PackedError(
                    f"position {first - 1} would attend to rows that were packed: read the text"
                    " again"
                )
            self.lists[sequence, : len(rows)] = rows
            self.page_lists[sequence, : len(pages)] = pages
            begins[own] = start
        where = GROUP * packed - begins
        seen = np.stack([sequences, where, ends - begins], axis=1)
        return {"cells": self.row_of[chosen], "spans": seen, "packed": packed, "into": into}

    def reach(self, sequence: int, end: int) -> int:
        """Not where the continuation needs released rows."""
        listed = self.cells.list_of(sequence)[:end]
        start = GROUP * int(self.pages_seen(len(listed)))
        return end if (self.row_of[listed[start:]] >= 0).all() else 0

    def on_remove(self, sequence: int, begin: int, gone: Array) -> None:  # noqa: ARG002
        if gone.any() and not gone[gone.argmax() :].all():
            raise ValueError(
                f"positions from {begin} on cannot be dropped without those after them, which are"
                " packed with them"
            )

    def session_fields(self, cells: Array) -> dict[str, Any]:
        """Includes the index of the first cell from which on all have rows."""
        self.before_step()
        lacking = np.flatnonzero(self.row_of[cells] < 0)
        return {"first": int(lacking[-1]) + 1 if len(lacking) else 0}

    def rows_of(self, cells: Array, block: int, fields: Mapping[str, Any]) -> Array:  # noqa: ARG002
        return self.row_of[cells[fields["first"] :]]

    def pages_of(self, cells: Array, fields: Mapping[str, Any]) -> Array:  # noqa: ARG002
        return self.page_of[self._last_cells(cells, int(self.pages_seen(len(cells))))]

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:
        first = header["first"]
        self._hold(cells[first:], np.arange(first, len(cells), dtype=np.int32))
        for cell in self._last_cells(cells, int(self.pages_seen(len(cells)))).tolist():
            self._allocate_page(cell)

    def on_free(self, cells: Array) -> None:
        self._rows.free(cells)
        super().on_free(cells)

    def _hold(self, chosen: Array, positions: Array) -> None:
        self.positions[self._rows.allocate(chosen)] = positions


def rows_for(capacity: int, n_sequences: int, tokens: int, residual: int) -> int:
    """Number of rows: those that sequences keep between steps, and a step's tokens."""
    return min(capacity, n_sequences * (residual + GROUP - 1 + ROLLBACK) + tokens)
