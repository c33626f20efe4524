"""The sequences of a cache: which are in use, what text each holds, and who begins alike."""

from collections.abc import Sequence

from engine.cache.cells import Cells


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most
    least = 0
    while least < most - 1:  # a[:least] are alike, a[:most] are not
        middle = (least + most) // 2
        least, most = (middle, most) if a[least:middle] == b[least:middle] else (least, middle)
    return least


class Slots:
    """`texts[s]` are the tokens whose cells sequence s holds. Those that nobody uses keep their
    text, which the next prompt may begin with, until cells or sequences are wanted: the one that
    was left longest ago goes first."""

    def __init__(self, cells: Cells, held: Sequence[int]) -> None:
        """With the text that sequence 0 holds; other sequences are emptied."""
        self._cells = cells
        for sequence in range(1, cells.n_sequences):
            cells.remove(sequence)
        self.texts: list[list[int]] = [[] for _ in range(cells.n_sequences)]
        self.texts[0] = list(held)
        self._idle = dict.fromkeys(range(cells.n_sequences - 1, -1, -1))  # 0 was used last

    def take(self, text: Sequence[int], most: int) -> int:
        """A sequence that is not in use, from now on in use, which holds what others have evaluated
        of the beginning of this text, at most so many tokens."""
        giver, shared = 0, 0
        for sequence, held in enumerate(self.texts):
            found = min(common(held, text), most)
            if found > shared and (found := self._cells.method.shares(sequence, found)) > shared:
                giver, shared = sequence, found
        empty = (s for s in self._idle if not self.texts[s])
        others = (s for s in self._idle if s != giver or not shared)
        slot = next(empty, next(others, giver))
        del self._idle[slot]
        if slot == giver and shared:
            self.cut(slot, shared)
        else:
            self.cut(slot, 0)
            if shared:
                self._cells.copy(giver, slot, end=shared)
                self.texts[slot] = self.texts[giver][:shared]
        return slot

    def cut(self, slot: int, end: int) -> None:
        """Forget what the sequence holds from token `end` on."""
        if self._cells.lengths[slot] > end:
            self._cells.remove(slot, begin=end)
        del self.texts[slot][end:]

    def leave(self, slot: int) -> None:
        """Nobody uses it any more."""
        self._idle[slot] = None

    @property
    def free(self) -> int:
        """Sequences that nobody uses."""
        return len(self._idle)

    def make_room(self, cells: int) -> bool:
        """Let texts go that nobody uses, until so many cells are free if that can be."""
        for slot in list(self._idle):
            if self._cells.free >= cells:
                break
            self.cut(slot, 0)
        return self._cells.free >= cells

    def close(self) -> list[int]:
        """Empty all but sequence 0: the text that is left there."""
        for slot in range(1, len(self.texts)):
            self.cut(slot, 0)
        return self.texts[0]
