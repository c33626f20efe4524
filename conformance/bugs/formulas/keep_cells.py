"""Planted bugs of keep_top and kv_keep."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.cache.keep_cells import keep_top, kv_keep
from reference.op import Array


def later_of_equals(scores: Array, kept: int, first: int, last: int) -> Array:
    slots = keep_top(scores[:, ::-1], kept, last, first)
    return np.sort(scores.shape[1] - 1 - slots, axis=1)


def budget_of_all_heads(scores: Array, **rest: Any) -> Array:
    """Every head keeps what is best for all of them."""
    return keep_top(np.broadcast_to(scores.sum(axis=0), scores.shape), **rest)


def worse_at_the_edge(scores: Array, kept: int, first: int, last: int) -> Array:
    """Where one of those between can be left out, the worst that is kept is the next one."""
    slots = keep_top(scores, kept, first, last)
    if first + last < kept < scores.shape[1]:
        more = keep_top(scores, kept + 1, first, last)
        fewer = keep_top(scores, kept - 1, first, last)
        for own, of_more, of_fewer in zip(slots, more, fewer, strict=True):
            (worst,) = np.setdiff1d(own, of_fewer)
            (following,) = np.setdiff1d(of_more, own)
            own[own == worst] = following
            own.sort()
    return slots


def out_of_what_moved(slots: Array, cells: Array, into: Array, before: Array, format: str) -> Array:
    """From the first slot to the last: what moved first is moved on."""
    heads = before.reshape(len(before), len(slots), -1).copy()
    for head, own in enumerate(slots):
        for j in range(len(into)):
            heads[into[j], head] = heads[cells[own[j]], head]
    return heads.reshape(before.shape)


BUGS = (
    *in_python(
        "keep_top",
        later_of_equals,
        budget_of_all_heads,
        worse_at_the_edge,
        no_ends=lambda scores, kept, first, last: keep_top(scores, kept, 0, 0),
        no_window=lambda scores, kept, first, last: keep_top(scores, kept, first + last, 0),
        lowest=changed(keep_top, scores=np.negative),
    ),
    *in_python(
        "kv_keep",
        out_of_what_moved,
        first_head_for_all=changed(
            kv_keep, slots=lambda slots: np.tile(slots[:1], (len(slots), 1))
        ),
        slots_as_cells=changed(
            kv_keep, cells=lambda cells: np.arange(len(cells)), into=np.ascontiguousarray
        ),
        nothing_moves=lambda slots, cells, into, before, format: before,
        a_slot_late=changed(kv_keep, cells=lambda cells: np.roll(cells, 1)),
        formats=("F16", "Q4_0"),
    ),
)
