"""Recurrent states: each belongs to the cell of the token after which it was computed.

A state cannot be shortened like a list of cells. So states are kept for the last token of each
sequence and for the latest tokens before it; a state belongs to its token's cell, so that forks
share it, and dropping the last tokens of a text goes back to an earlier state. See
reference/recurrent/state.py for how a step reads and writes states.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from reference.recurrent.state import BEFORE

Array = np.ndarray[Any, np.dtype[np.int32]]

ZEROS = 0  # the slot of the initial state, never written
LATEST = 2  # last tokens of a longer step whose states are kept: for repeated prompts


class StateError(RuntimeError):
    """A token would continue from a state that was not kept, or there are too few slots."""


class States:
    """State slots for up to `n_sequences` sequences and `spare` older states. Steps of at most
    `spare` tokens keep every state, so that drafts can be rolled back by any number of tokens."""

    def __init__(self, n_sequences: int, spare: int) -> None:
        self.spare = spare
        self.count = slots_for(n_sequences, spare)
        self._slots: dict[int, int] = {}  # by cell, in order of age
        self._free = list(range(self.count - 1, ZEROS, -1))

    def __contains__(self, cell: int) -> bool:
        return cell in self._slots

    def __getitem__(self, cell: int) -> int:
        """The slot of the state after this cell's token."""
        return self._slots[cell]

    def free(self, cells: Iterable[int]) -> None:
        """Free the states of these cells, if any."""
        for cell in cells:
            if cell in self._slots:
                self._free.append(self._slots.pop(cell))

    def allocate(self, cell: int, needed: Iterable[int] = ()) -> int:
        """Allocate a slot for the state after this cell's token; may evict the oldest state of a
        cell that is not `needed`."""
        if not self._free:
            pinned = set(needed)
            oldest = next((old for old in self._slots if old not in pinned), None)
            if oldest is None:
                raise StateError(f"a step needs more than the {self.count} state slots")
            self.free([oldest])
        self._slots[cell] = self._free.pop()
        return self._slots[cell]

    def routes(
        self, cells: Sequence[int], before: Sequence[int], ends: Iterable[int]
    ) -> tuple[Array, Array, Array]:
        """The execution order of a step's tokens, and in this order the slots that their states are
        read from and written to: int32 [tokens] each.

        Each token has its cell and the one before it in its sequence (-1 for the first); `ends` are
        the last cells of all sequences.
        """
        order = _execution_order(cells, before)
        own, previous, ends = [cells[t] for t in order], [before[t] for t in order], set(ends)
        follows = [t > 0 and cell == own[t - 1] for t, cell in enumerate(previous)]
        read = {cell for cell, near in zip(previous, follows, strict=True) if not near}
        latest = len(own) if len(own) <= self.spare else min(LATEST, self.spare)
        sources, targets = np.full((2, len(own)), BEFORE, np.int32)
        for t, cell in enumerate(own):
            if cell in read or cell in ends or t >= len(own) - latest:
                targets[t] = self.allocate(cell, {*own, *previous, *ends})
        for t, cell in enumerate(previous):
            if not follows[t]:
                if cell >= 0 and cell not in self._slots:
                    raise StateError("no state is kept where the text continues: read it again")
                sources[t] = self._slots[cell] if cell >= 0 else ZEROS
        self._evict(ends | read)
        return np.array(order, np.int32), sources, targets

    def _evict(self, needed: set[int]) -> None:
        """Evict the oldest states that are neither needed nor among the `spare` latest."""
        others = [cell for cell in self._slots if cell not in needed]
        self.free(others[: max(0, len(others) - self.spare)])


def slots_for(n_sequences: int, spare: int) -> int:
    """Number of slots: the initial state; for each sequence the states before and after a step, and
    the one at a fork; and the spare ones."""
    return 1 + 3 * n_sequences + spare


def _execution_order(cells: Sequence[int], before: Sequence[int]) -> list[int]:
    """Order tokens so that each follows its predecessor, directly if possible."""
    numbers = {cell: t for t, cell in enumerate(cells)}
    following: dict[int, list[int]] = {}
    for t, cell in enumerate(before):
        following.setdefault(numbers.get(cell, -1), []).append(t)
    order, waiting = list[int](), following.pop(-1, [])[::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += following.get(order[-1], [])[::-1]
    return order
