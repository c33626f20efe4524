"""The cache's sequences as slots: which are in use, the text in each, and shared prefixes."""

from collections.abc import Sequence

from engine.cache.cells import Cells


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common_prefix prefix of two texts."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most
    least = 0
    while least < most - 1:  # a[:least] is equal, a[:most] is not
        middle = (least + most) // 2
        least, most = (middle, most) if a[least:middle] == b[least:middle] else (least, middle)
    return least


class Slots:
    """`texts[s]` are the tokens whose cells sequence s holds. Idle slots keep their text for prefix
    reuse, until cells or sequences are needed: the least recently used one is evicted first."""

    def __init__(self, cells: Cells, held: Sequence[int]) -> None:
        """`held` is the text in sequence 0; other sequences are cleared."""
        self._cells = cells
        for sequence in range(1, cells.n_sequences):
            cells.remove(sequence)
        self.texts: list[list[int]] = [[] for _ in range(cells.n_sequences)]
        self.texts[0] = list(held)
        self._idle = dict.fromkeys(range(cells.n_sequences - 1, -1, -1))  # 0 is the most recent

    def allocate(self, text: Sequence[int], most: int) -> int:
        """Allocate an idle slot for a text; it shares up to `most` tokens of the longest prefix
        that any slot has evaluated."""
        giver, shared = 0, 0
        for sequence, held in enumerate(self.texts):
            found = min(common_prefix(held, text), most)
            if found > shared and (found := self._cells.method.shareable(sequence, found)) > shared:
                giver, shared = sequence, found
        empty = (s for s in self._idle if not self.texts[s])
        others = (s for s in self._idle if s != giver or not shared)
        slot = next(empty, next(others, giver))
        del self._idle[slot]
        if slot == giver and shared:
            self.truncate(slot, shared)
        else:
            self.truncate(slot, 0)
            if shared:
                self._cells.copy(giver, slot, end=shared)
                self.texts[slot] = self.texts[giver][:shared]
        return slot

    def truncate(self, slot: int, end: int) -> None:
        """Drop the slot's tokens from index `end` on."""
        if self._cells.lengths[slot] > end:
            self._cells.remove(slot, begin=end)
        del self.texts[slot][end:]

    def release(self, slot: int) -> None:
        """Mark a slot as idle."""
        self._idle[slot] = None

    @property
    def free(self) -> int:
        """Number of idle slots."""
        return len(self._idle)

    def make_room(self, cells: int) -> bool:
        """Evict idle slots' texts until `cells` cells are free; returns whether they are."""
        for slot in list(self._idle):
            if self._cells.free >= cells:
                break
            self.truncate(slot, 0)
        return self._cells.free >= cells

    def close(self) -> list[int]:
        """Clear all slots but 0; returns the text in it."""
        for slot in range(1, len(self.texts)):
            self.truncate(slot, 0)
        return self.texts[0]
