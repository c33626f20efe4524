"""Planted bugs of attention_received."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.attention.attention_received import attention_received
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.op import Array


def without_before(**given: Any) -> Array:
    return attention_received(**{**given, "before": np.zeros_like(given["before"])})


def by_cell(**given: Any) -> Array:
    """What a cell receives stands where it lies, not where its list has it."""
    out = without_before(**given)
    moved = np.zeros_like(out)
    for s, cells in enumerate(given["lists"]):
        moved[s][:, cells] = out[s]
    return given["before"] + moved


def mean_of_tokens(**given: Any) -> Array:
    added = without_before(**given)
    return given["before"] + added / max(1, len(given["q"]))


def mixed_sequences(**given: Any) -> Array:
    """A token's weights are what a sequence has, of all of a step."""
    added = without_before(**given)
    total = max(1.0, added.sum())
    return given["before"] + added * (1 + 1e-3 * added.sum() / total)


def last_head_alone(**given: Any) -> Array:
    """Of each group its last query head, counted for all of them."""
    q, kv_heads = given["q"], given["before"].shape[1]
    groups = q.reshape(len(q), kv_heads, q.shape[1] // kv_heads, q.shape[2])
    groups = np.broadcast_to(groups[:, :, -1:], groups.shape)
    return attention_received(**{**given, "q": groups.reshape(q.shape)})


BUGS = in_python(
    "attention_received",
    without_before,
    by_cell,
    mean_of_tokens,
    mixed_sequences,
    last_head_alone,
    unscaled=changed(attention_received, scale=1.0),
    sees_one_less=changed(
        attention_received,
        spans=lambda spans: np.column_stack(
            [spans[:, :2], np.maximum(spans[:, 1], spans[:, 2] - 1)]
        ),
    ),
    sequence_of_the_first=changed(
        attention_received, spans=lambda spans: np.column_stack([0 * spans[:, :1], spans[:, 1:]])
    ),
    formats=FORMATS_OF_CACHE,
)
