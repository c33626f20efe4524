"""Where recurrent state is kept: with the cell of the token that it stands behind.

A state is no list of cells of which some can be dropped: it is what token after token made of it.
So one is kept behind the last token of each sequence, and behind the latest of the tokens before;
it belongs to whoever has that token's cell. A fork shares it, and dropping the last tokens of a
text goes back to the one behind the token before them. See reference/recurrent/state.py for how a
step reads and writes them.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from reference.recurrent.state import BEFORE

Array = np.ndarray[Any, np.dtype[np.int32]]

ZEROS = 0  # the slot of the state before a text's first token, which nobody writes
LATEST = 2  # tokens at the end of a longer step: a prompt that is read again has its last one anew


class StateError(RuntimeError):
    """A token that would go on from a state that nobody kept, or too few slots."""


class States:
    """Slots for up to `n_sequences` sequences, and for `spare` states that none of them ends with.
    Of steps of so many tokens every state is kept, so that drafts may be dropped one by one."""

    def __init__(self, n_sequences: int, spare: int) -> None:
        self.spare = spare
        self.count = slots_for(n_sequences, spare)
        self._slots: dict[int, int] = {}  # by cell, the latest last
        self._free = list(range(self.count - 1, ZEROS, -1))

    def __contains__(self, cell: int) -> bool:
        return cell in self._slots

    def __getitem__(self, cell: int) -> int:
        """The slot of the state behind this cell's token."""
        return self._slots[cell]

    def drop(self, cells: Iterable[int]) -> None:
        """These are free, and what is kept with them."""
        for cell in cells:
            if cell in self._slots:
                self._free.append(self._slots.pop(cell))

    def hold(self, cell: int, needed: Iterable[int] = ()) -> int:
        """A slot for the state behind this cell's token, if need be that of the oldest one behind
        no cell that is `needed`."""
        if not self._free:
            pinned = set(needed)
            oldest = next((old for old in self._slots if old not in pinned), None)
            if oldest is None:
                raise StateError(f"a step wants more than the {self.count} states that are kept")
            self.drop([oldest])
        self._slots[cell] = self._free.pop()
        return self._slots[cell]

    def routes(
        self, cells: Sequence[int], before: Sequence[int], ends: Iterable[int]
    ) -> tuple[Array, Array, Array]:
        """The order in which a step runs its tokens, and in it their sources and targets, for which
        slots are taken: int32 [tokens] each.

        Each token has its cell and the one before it in its sequence, -1 for a text's first;
        `ends` are the last cells of all sequences.
        """
        order = _in_runs(cells, before)
        own, behind, ends = [cells[t] for t in order], [before[t] for t in order], set(ends)
        follows = [t > 0 and cell == own[t - 1] for t, cell in enumerate(behind)]
        read = {cell for cell, near in zip(behind, follows, strict=True) if not near}
        latest = len(own) if len(own) <= self.spare else min(LATEST, self.spare)
        sources, targets = np.full((2, len(own)), BEFORE, np.int32)
        for t, cell in enumerate(own):
            if cell in read or cell in ends or t >= len(own) - latest:
                targets[t] = self.hold(cell, {*own, *behind, *ends})
        for t, cell in enumerate(behind):
            if not follows[t]:
                if cell >= 0 and cell not in self._slots:
                    raise StateError("no state is kept where a token goes on: evaluate it anew")
                sources[t] = self._slots[cell] if cell >= 0 else ZEROS
        self._forget(ends | read)
        return np.array(order, np.int32), sources, targets

    def _forget(self, needed: set[int]) -> None:
        """The oldest beyond those that are needed and `spare`."""
        others = [cell for cell in self._slots if cell not in needed]
        self.drop(others[: max(0, len(others) - self.spare)])


def slots_for(n_sequences: int, spare: int) -> int:
    """The zeros; of each sequence the state that a step begins with, the one it ends with, and that
    where it parts from another; and the spare ones."""
    return 1 + 3 * n_sequences + spare


def _in_runs(cells: Sequence[int], before: Sequence[int]) -> list[int]:
    """The tokens so that each comes behind the one before it, at once if it can be."""
    numbers = {cell: t for t, cell in enumerate(cells)}
    following: dict[int, list[int]] = {}
    for t, cell in enumerate(before):
        following.setdefault(numbers.get(cell, -1), []).append(t)
    order, waiting = list[int](), following.pop(-1, [])[::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += following.get(order[-1], [])[::-1]
    return order
