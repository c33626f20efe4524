"""Planted bugs of knorm, keydiff and pool_scores."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.cache.cell_scores import keydiff, knorm, pool_scores
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.op import Array


def squared(**given: Any) -> Array:
    return -(knorm(**given) ** 2)


def against_the_first(**given: Any) -> Array:
    """A score is relative to the first cell's."""
    scores = knorm(**given)
    return scores - scores[:, :1]


def of_cells_in_order(reference: Any) -> Any:
    return changed(reference, cells=lambda cells: np.arange(len(cells)))


def anchor_of_raw_keys(k: Array, cells: Array, kv_heads: int, format: str) -> Array:
    """Long keys pull the mean."""
    norms = -knorm(k, cells, kv_heads, format)
    mean = norms.sum(axis=1, keepdims=True) / max(1, len(cells))
    return keydiff(k, cells, kv_heads, format) * np.where(mean > 0, norms / mean, 1)


def over_those_there_are(scores: Array, size: int, last: int) -> Array:
    """At an end the mean is over fewer."""
    counts = pool_scores(np.ones_like(scores), size, last)
    return pool_scores(scores, size, last) / counts


BUGS = (
    *in_python(
        "knorm",
        squared,
        against_the_first,
        large_ones_first=lambda **given: -knorm(**given),
        a_head_late=lambda **given: np.roll(knorm(**given), 1, axis=0),
        cells_in_order=of_cells_in_order(knorm),
        formats=FORMATS_OF_CACHE,
    ),
    *in_python(
        "keydiff",
        anchor_of_raw_keys,
        alike_first=lambda **given: -keydiff(**given),
        cells_in_order=of_cells_in_order(keydiff),
        formats=FORMATS_OF_CACHE,
    ),
    *in_python(
        "pool_scores",
        over_those_there_are,
        sums=lambda scores, size, last: pool_scores(scores, size, last) * size,
        a_place_late=lambda scores, size, last: np.roll(pool_scores(scores, size, last), 1, axis=1),
        two_more=lambda scores, size, last: pool_scores(scores, size + 2, last),
        window_too=lambda scores, size, last: pool_scores(scores, size, 0),
        one_pool=lambda scores, size, last: pool_scores(scores.reshape(1, -1), size, last).reshape(
            scores.shape
        ),
    ),
)
