"""Which neurons of a sparse model are in memory, when they do not all fit: windowing of "LLM in a
flash" (arXiv 2312.11514).

One pool of equal slots serves all blocks. Each block keeps its most recently used neurons, at least
its quota and at most for the window's length; a step requests neurons by `want` and gets the list
of those to read, with their slots. Nothing is read here, and nothing moves: kernels index by
`slots`.

A window is known to compiled code by the address of its words. One thread at a time calls.
"""

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from kernels.cpu.runtime.share import all_arguments, arguments, pack_words
from reference.op import out_of_range

# `slots` has a block's neurons from first[block] on, and `owner` a slot's place in it. A block's
# slots are a ring, least recently used first, that begins and ends at capacity + block. free[0] is
# the number of free slots, which follow.
STATE = (
    "steps: i64, first: i64[blocks], quota: i32[blocks], slots: i32[neurons], owner: i32[capacity],"
    " stamp: i64[capacity], before: i32[places], after: i32[places], free: i32[stack],"
    " held: i32[blocks], pinned: i32[blocks], hits: i64[blocks], misses: i64[blocks] -> "
)
# A neuron that is not in memory has its slot there, a free slot its owner, and a slot in no ring (a
# free or a pinned one) its neighbours.
NOWHERE = -1
FOREVER = int(np.iinfo(np.int64).max)  # steps

State = namedtuple("State", [a.name for a in all_arguments(STATE)])  # type: ignore[misc]


@njit
def state_of(window):
    return State(*arguments(window, STATE))


@njit
def unlink(s, slot):
    before, after = s.before[slot], s.after[slot]
    s.after[before] = after
    s.before[after] = before


@njit
def link_last(s, slot, end):
    last = s.before[end]
    s.after[last] = s.before[end] = slot
    s.before[slot], s.after[slot] = last, end


@njit
def free_slot(s, slot):
    s.slots[s.owner[slot]] = NOWHERE
    s.owner[slot] = NOWHERE
    s.before[slot] = s.after[slot] = NOWHERE
    s.free[0] += 1
    s.free[s.free[0]] = slot


@njit
def evict_oldest(s, block):
    slot = s.after[s.owner.size + block]
    unlink(s, slot)
    free_slot(s, slot)
    s.held[block] -= 1


@njit
def want(window, block, rows, active, step, loads):
    """The step needs the block's neurons rows[:active], ascending; steps never go back. Writes
    (neuron, slot) into loads i32 [neurons, 2] for those to be read, in order. -> how many.

    Where no slot is free, the nearest block before this one that has more than its quota gives that
    of its oldest neuron: slots are good until the next call. At the end those of this block go that
    are too old for the window.
    """
    s = state_of(window)
    first, end = s.first[block], s.owner.size + block
    giver, missed = block, 0
    for i in range(active):
        slot = s.slots[first + rows[i]]
        if slot == NOWHERE:
            if s.free[0] == 0:
                # blocks run in order: the one just left is needed again last
                while giver == block or s.held[giver] <= s.quota[giver]:
                    giver = (giver - 1) % s.held.size
                evict_oldest(s, giver)
            slot = s.free[s.free[0]]
            s.free[0] -= 1
            s.slots[first + rows[i]] = slot
            s.owner[slot] = first + rows[i]
            loads[missed, 0], loads[missed, 1] = rows[i], slot
            missed += 1
        elif s.after[slot] == NOWHERE:
            continue
        else:
            unlink(s, slot)
        link_last(s, slot, end)
        s.stamp[slot] = step
    s.held[block] += missed
    s.hits[block] += active - missed
    s.misses[block] += missed
    while s.after[end] != end and step - s.stamp[s.after[end]] > s.steps:
        evict_oldest(s, block)
    return missed


@njit
def forget(window, pinned):
    """Evict every neuron, with `pinned` those too: the contents after a failed read are unknown."""
    s = state_of(window)
    for slot in range(s.owner.size):
        if s.owner[slot] != NOWHERE and (pinned or s.after[slot] != NOWHERE):
            free_slot(s, slot)
    for block in range(s.held.size):
        end = s.owner.size + block
        s.before[end] = s.after[end] = end
        s.held[block] = 0
        if pinned:
            s.pinned[block] = 0


def slots_needed(neurons: ArrayLike, quota: ArrayLike, pinned: ArrayLike) -> int:
    """The least capacity at which no wanted neuron lacks a slot: i32 [blocks] each. A block may
    have to hold all its neurons, and takes slots of the others down to their quotas."""
    rest = np.subtract(neurons, pinned)
    kept = np.minimum(quota, rest)
    return int(np.sum(pinned) + np.sum(kept) + np.max(rest - kept))


class NeuronWindow:
    """The arrays of a window over blocks of so many `neurons`, of which each is sure to keep its
    `quota` (both i32 [blocks]) in a pool of `capacity` slots; pinned ones come on top, and more
    stay while no other block needs their slots.

    `steps`: how many a neuron may go unused; 0 keeps those of the block's last step alone. (The
    paper's window of k tokens is steps = k - 1.) `address` is what compiled code calls it by.
    """

    def __init__(
        self, neurons: Sequence[int], quota: Sequence[int], capacity: int, steps: int = FOREVER
    ) -> None:
        blocks, total = len(neurons), sum(neurons)
        self.neurons, self.capacity = np.array(neurons, np.int64), capacity
        self._demand_room(quota, np.zeros(blocks, np.int32))
        places = np.full((2, capacity + blocks), NOWHERE, np.int32)
        places[:, capacity:] = np.arange(capacity, capacity + blocks)
        values = {
            "steps": steps,
            "first": np.cumsum(self.neurons) - self.neurons,
            "quota": np.array(quota, np.int32),
            "slots": np.full(total, NOWHERE, np.int32),
            "owner": np.full(capacity, NOWHERE, np.int32),
            "stamp": np.zeros(capacity, np.int64),
            "before": places[0],
            "after": places[1],
            "free": np.array([capacity, *range(capacity)[::-1]], np.int32),
            "held": np.zeros(blocks, np.int32),
            "pinned": np.zeros(blocks, np.int32),
            "hits": np.zeros(blocks, np.int64),
            "misses": np.zeros(blocks, np.int64),
        }
        self.state: Any = State(**values)
        self._words = pack_words(STATE, values)
        self.address: int = self._words.ctypes.data

    def _demand_room(self, quota: ArrayLike, pinned: ArrayLike) -> None:
        needed = slots_needed(self.neurons, quota, pinned)
        if needed > self.capacity:
            raise ValueError(
                f"{self.capacity} slots are too few for these neurons: {needed} are needed"
            )

    def slots_of(self, block: int) -> Any:
        """i32 [neurons]: the slot of each of the block's neurons, -1 if it is not in memory."""
        first = self.state.first[block]
        return self.state.slots[first : first + self.neurons[block]]

    def pin(self, block: int, rows: Sequence[int]) -> Any:
        """Give permanent slots to neurons of this block, before any are wanted. -> loads i32
        [neurons, 2]: (neuron, slot) of each, to be read."""
        s, wanted = self.state, np.array(rows, np.int32)
        if s.held.any():
            raise ValueError(f"block {block}: neurons are pinned before any are wanted")
        if complaint := out_of_range("rows", wanted, self.neurons[block]):
            raise ValueError(f"block {block}: {complaint}")
        if len(set(rows)) < len(rows) or (self.slots_of(block)[wanted] != NOWHERE).any():
            raise ValueError(f"block {block}: a neuron is pinned twice")
        pinned = s.pinned.copy()
        pinned[block] += len(rows)
        self._demand_room(s.quota, pinned)
        s.pinned[:] = pinned
        s.free[0] -= len(rows)
        slots = s.free[1 + s.free[0] :][: len(rows)][::-1]
        s.owner[slots] = s.first[block] + wanted
        self.slots_of(block)[wanted] = slots
        return np.stack([wanted, slots], axis=1)

    def forget(self, *, pinned: bool = False) -> None:
        """Evict all but pinned neurons, with `pinned` those too."""
        forget(self.address, pinned)
