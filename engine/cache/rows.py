"""Allocation of rows in a cache that has fewer rows than there are cells."""

import numpy as np

from reference.op import Array

NONE = -1


class Rows:
    """`count` rows for `capacity` cells; `row_of` maps a cell to its row, or NONE."""

    def __init__(self, count: int, capacity: int) -> None:
        self.count = count
        self.row_of = np.full(capacity, NONE, np.int32)
        self._cells = np.full(count, NONE, np.int32)  # by row

    @property
    def held(self) -> int:
        """Number of rows in use."""
        return int((self._cells != NONE).sum())

    def allocate(self, cells: Array) -> Array:
        """Allocate rows for cells without one, the lowest free ones."""
        rows = np.flatnonzero(self._cells == NONE)[: len(cells)].astype(np.int32)
        self.row_of[cells], self._cells[rows] = rows, cells
        return rows

    def free(self, cells: Array) -> None:
        """Free the rows of these cells."""
        rows = self.row_of[cells]
        self._cells[rows[rows != NONE]] = NONE
        self.row_of[cells] = NONE

    def retain(self, needed: Array) -> None:
        """Free all rows but those of `needed` cells: bool [capacity]."""
        held = self._cells[self._cells != NONE]
        self.free(held[~needed[held]])
