"""Base of methods that keep groups of tokens in pages (two_bits.py, merged.py).

Groups are counted from the text's beginning. A page belongs to the cell of its group's last token:
forks share it, and it is freed with that cell.
"""

import numpy as np

from engine.cache.method import CacheMethod
from reference.op import Array

NONE = -1


class Paged(CacheMethod):
    """`count` pages for groups of `group` tokens, up to `slots` per sequence; `page_lists` is the
    step's input."""

    def __init__(self, capacity: int, n_sequences: int, group: int, slots: int) -> None:
        self.group, self.count = group, pages_for(capacity, n_sequences, group)
        self.page_lists = np.zeros((n_sequences, slots), np.int32)
        self.page_of = np.full(capacity, NONE, np.int32)  # by the cell of the group's last token
        self._free = list(range(self.count - 1, -1, -1))
        self._fresh: list[int] = []  # cells of the pages allocated in this step

    @property
    def packed(self) -> int:
        return self.count - len(self._free)

    def before_step(self) -> None:
        self._fresh = []

    def on_failure(self) -> None:
        """Free the pages allocated in the failed step."""
        for cell in self._fresh:
            self._free_page(cell)
        self._fresh = []

    def on_free(self, cells: Array) -> None:
        for cell in cells[self.page_of[cells] >= 0].tolist():
            self._free_page(cell)

    def _last_cells(self, listed: Array, pages: int) -> Array:
        """The cells of the last tokens of a text's first pages."""
        return listed[self.group - 1 : self.group * pages : self.group]

    def _allocate_page(self, last: int) -> int:
        """Allocate a page for the group whose last token has this cell; NONE if it has one."""
        if self.page_of[last] >= 0:
            return NONE
        self.page_of[last] = self._free.pop()
        self._fresh.append(last)
        return int(self.page_of[last])

    def _free_page(self, cell: int) -> None:
        if self.page_of[cell] >= 0:
            self._free.append(int(self.page_of[cell]))
            self.page_of[cell] = NONE


def pages_for(capacity: int, n_sequences: int, group: int) -> int:
    """Number of pages; each sequence may need one more, since forks within a group share its first
    cells but not its page."""
    return -(-capacity // group) + n_sequences
