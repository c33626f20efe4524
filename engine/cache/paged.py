"""Methods that keep groups of a text's tokens in pages (two_bits.py, merged.py).

A group is counted from the text's beginning. Its page belongs to whoever has the cell of its last
token, so that forks share it, and whoever drops that cell drops it.
"""

import numpy as np

from engine.cache.method import Method
from reference.op import Array

NONE = -1


class Paged(Method):
    """`count` pages for groups of so many tokens, up to `slots` of each sequence; `page_lists` has
    those that a step is told of."""

    def __init__(self, capacity: int, n_sequences: int, group: int, slots: int) -> None:
        self.group, self.count = group, pages_for(capacity, n_sequences, group)
        self.page_lists = np.zeros((n_sequences, slots), np.int32)
        self.page_of = np.full(capacity, NONE, np.int32)  # by the cell of a page's last token
        self._free = list(range(self.count - 1, -1, -1))
        self._fresh: list[int] = []  # last cells of the pages that this step makes

    @property
    def packed(self) -> int:
        return self.count - len(self._free)

    def before(self) -> None:
        self._fresh = []

    def undo(self) -> None:
        """The step failed: what it would have made is not."""
        for cell in self._fresh:
            self._let_page_go(cell)
        self._fresh = []

    def freed(self, cells: Array) -> None:
        for cell in cells[self.page_of[cells] >= 0].tolist():
            self._let_page_go(cell)

    def _ends(self, listed: Array, pages: int) -> Array:
        """Of a text's cells those of the last tokens of its first pages."""
        return listed[self.group - 1 : self.group * pages : self.group]

    def _page(self, last: int) -> int:
        """A new page for the group whose last token has this cell, or NONE where there is one."""
        if self.page_of[last] >= 0:
            return NONE
        self.page_of[last] = self._free.pop()
        self._fresh.append(last)
        return int(self.page_of[last])

    def _let_page_go(self, cell: int) -> None:
        if self.page_of[cell] >= 0:
            self._free.append(int(self.page_of[cell]))
            self.page_of[cell] = NONE


def pages_for(capacity: int, n_sequences: int, group: int) -> int:
    """Texts that part within a group have its first cells in common, but not its page."""
    return -(-capacity // group) + n_sequences
