"""Planted bugs of pattern_attention."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.attention.pattern_attention import pattern_attention
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.op import Array


def by_place(**given: Any) -> Array:
    """Scores go by the place in the list: a cell that is not seen moves those behind it."""
    fewer = np.where(given["spans"][:, 2] > 0, 1 + 1e-3 * given["spans"][:, 2], 1)
    return pattern_attention(**{**given, "q": given["q"] * fewer[:, None, None]})


def mixed_tokens(**given: Any) -> Array:
    """A token has a little of what the others have."""
    out = pattern_attention(**given)
    own = given["spans"][:, 2] > 0
    out[own] += 1e-3 * out[own].mean(axis=0) if own.any() else 0
    return out


def row_of_the_first(**given: Any) -> Array:
    """All blocks of queries see what the first row says."""
    sees = np.broadcast_to(given["sees"][:, :1], given["sees"].shape)
    return pattern_attention(**{**given, "sees": sees})


def by_cell(**given: Any) -> Array:
    """What is seen is asked of a cell, not of the slot that it has in its list."""
    sequence = given["spans"][-1, 0] if len(given["spans"]) else 0
    sees = given["sees"][:, :, given["lists"][sequence]]
    return pattern_attention(**{**given, "sees": sees})


BUGS = in_python(
    "pattern_attention",
    by_place,
    mixed_tokens,
    row_of_the_first,
    by_cell,
    nothing_left_out=changed(pattern_attention, sees=np.ones_like),
    ones_alone=changed(pattern_attention, sees=lambda sees: (sees == 1).astype(np.uint8)),
    first_head_sees=changed(
        pattern_attention, sees=lambda sees: np.broadcast_to(sees[:1], sees.shape)
    ),
    unscaled=changed(pattern_attention, scale=1.0),
    a_cell_late=changed(pattern_attention, sees=lambda sees: np.roll(sees, 1, axis=2)),
    nothing_before=changed(pattern_attention, before=np.zeros_like),
    formats=FORMATS_OF_CACHE,
)
