"""Rows of a cache that has fewer of them than there are cells: which cells have one."""

import numpy as np

from reference.op import Array

NONE = -1


class Rows:
    """`count` rows for some of `capacity` cells; `of` says which row a cell has, or NONE."""

    def __init__(self, count: int, capacity: int) -> None:
        self.count = count
        self.of = np.full(capacity, NONE, np.int32)
        self._cells = np.full(count, NONE, np.int32)  # by row

    @property
    def held(self) -> int:
        """How many cells have one."""
        return int((self._cells != NONE).sum())

    def hold(self, cells: Array) -> Array:
        """Rows for these cells, which have none, the lowest that are free."""
        rows = np.flatnonzero(self._cells == NONE)[: len(cells)].astype(np.int32)
        self.of[cells], self._cells[rows] = rows, cells
        return rows

    def let_go(self, cells: Array) -> None:
        """Whichever of these have rows have none."""
        rows = self.of[cells]
        self._cells[rows[rows != NONE]] = NONE
        self.of[cells] = NONE

    def keep(self, needed: Array) -> None:
        """Of those that have rows only the `needed` keep theirs: bool [capacity]."""
        held = self._cells[self._cells != NONE]
        self.let_go(held[~needed[held]])
