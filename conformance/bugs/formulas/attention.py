"""Planted bugs of attention."""

from typing import Any

import numpy as np

from conformance.bugs.bug import in_python
from reference.attention.attention import attention
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.op import Array


def heads_taken_in_turns(**inputs: Any) -> Array:
    """Query head h reads KV head h % kv_heads."""
    q, layout = inputs["q"], FORMATS[inputs["format"]]
    heads, head_dim = q.shape[1:]
    kv_heads = inputs["k"].shape[1] // layout.block_bytes * layout.block // head_dim
    order = np.argsort(np.arange(heads) % kv_heads, kind="stable")
    turns = {name: inputs[name][order] for name in ("slopes", "sinks")}
    turns |= {"q": q[:, order]}
    return attention(**{**inputs, **turns})[:, np.argsort(order)]


def halves_averaged(**inputs: Any) -> Array:
    """Attend to each half of a token's cells and average the results, without merging sums."""
    middle = inputs["spans"].sum(axis=1, where=[False, True, True]) // 2
    first, last = inputs["spans"].copy(), inputs["spans"].copy()
    first[:, 2] = last[:, 1] = middle
    parts = [attention(**{**inputs, "spans": spans}) for spans in (first, last)]
    return (parts[0] + parts[1]) / 2


def scales_of_the_first_block(**inputs: Any) -> Array:
    """Every block of a quantised row uses the first one's scale."""

    def stale(rows: Array) -> Array:
        blocks = rows.reshape(len(rows), -1, FORMATS[inputs["format"]].block_bytes).copy()
        blocks[:, :, :2] = blocks[:, :1, :2]
        return blocks.reshape(rows.shape)

    return attention(**{**inputs, "k": stale(inputs["k"]), "v": stale(inputs["v"])})


BUGS = (
    *in_python("attention", heads_taken_in_turns, halves_averaged, formats=FORMATS_OF_CACHE),
    *in_python("attention", scales_of_the_first_block, formats=("Q8_0", "Q4_0")),
)
