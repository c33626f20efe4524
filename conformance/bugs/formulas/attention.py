"""Planted bugs of attention."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.attention.attention import attention
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.op import Array

Inputs = dict[str, Any]


def changed_spans(inputs: Inputs, begin: int, end: int) -> Array:
    """Attention whose spans begin and end so many cells later."""
    capacity = inputs["lists"].shape[1]
    spans = np.clip(inputs["spans"] + [0, begin, end], 0, None)
    spans[:, 1:] = np.minimum(spans[:, 1:], capacity)
    return attention(**{**inputs, "spans": spans})


def heads_taken_in_turns(**inputs: Any) -> Array:
    """Query head h reads KV head h % kv_heads."""
    q, layout = inputs["q"], FORMATS[inputs["format"]]
    heads, head_dim = q.shape[1:]
    kv_heads = inputs["k"].shape[1] // layout.block_bytes * layout.block // head_dim
    order = np.argsort(np.arange(heads) % kv_heads, kind="stable")
    turns = {name: inputs[name][order] for name in ("slopes", "sinks")}
    turns |= {"q": q[:, order]}
    return attention(**{**inputs, **turns})[:, np.argsort(order)]


def without_max(**inputs: Any) -> Array:
    """exp(score) in float32 as it comes: weights by attention over each cell alone."""
    q, lists = inputs["q"], inputs["lists"]
    k, v = (FORMATS[inputs["format"]].dequantise(inputs[name]) for name in ("k", "v"))
    out = np.zeros(q.shape)
    for t, (sequence, begin, end) in enumerate(inputs["spans"]):
        cells = lists[sequence, begin:end]
        keys, values = (rows[cells].reshape(len(cells), -1, q.shape[2]) for rows in (k, v))
        for h in range(q.shape[1]):
            g = h * keys.shape[1] // q.shape[1]
            powers = np.exp(np.float32(inputs["scale"]) * (keys[:, g] @ q[t, h]))
            out[t, h] = powers @ values[:, g] / powers.sum() if len(cells) else 0
    return out


def halves_averaged(**inputs: Any) -> Array:
    """Each half of a token's cells attended to alone, the two averaged: no merging of sums."""
    middle = inputs["spans"].sum(axis=1, where=[False, True, True]) // 2
    first, last = inputs["spans"].copy(), inputs["spans"].copy()
    first[:, 2] = last[:, 1] = middle
    parts = [attention(**{**inputs, "spans": spans}) for spans in (first, last)]
    return (parts[0] + parts[1]) / 2


def scales_of_the_first_block(**inputs: Any) -> Array:
    """Every block of a quantised row with the first one's scale."""

    def stale(rows: Array) -> Array:
        blocks = rows.reshape(len(rows), -1, FORMATS[inputs["format"]].block_bytes).copy()
        blocks[:, :, :2] = blocks[:, :1, :2]
        return blocks.reshape(rows.shape)

    return attention(**{**inputs, "k": stale(inputs["k"]), "v": stale(inputs["v"])})


BUGS = (
    *in_python(
        "attention",
        heads_taken_in_turns,
        without_max,
        halves_averaged,
        sees_the_future=lambda **inputs: changed_spans(inputs, 0, 1),
        misses_itself=lambda **inputs: changed_spans(inputs, 0, -1),
        window_one_longer=lambda **inputs: changed_spans(inputs, -1, 0),
        unscaled=changed(attention, scale=1.0),
        uncapped=changed(attention, softcap=0.0),
        slopes_upside_down=changed(attention, slopes=np.negative),
        no_slopes=changed(attention, slopes=np.zeros_like),
        slopes_where_there_are_none=changed(
            attention, slopes=lambda slopes: np.where(slopes == 0, np.float32(0.05), slopes)
        ),
        no_sinks=changed(attention, sinks=lambda sinks: np.full_like(sinks, -np.inf)),
        sinks_where_there_are_none=changed(attention, sinks=lambda sinks: np.maximum(sinks, 0)),
        cells_positions_halved=changed(attention, cell_positions=lambda cells: cells // 2),
        cells_in_memory_order=changed(
            attention, lists=lambda lists: np.tile(np.arange(lists.shape[1]), (len(lists), 1))
        ),
        first_sequence_only=changed(
            attention, lists=lambda lists: np.tile(lists[:1], (len(lists), 1))
        ),
        keys_as_values=lambda **inputs: attention(**{**inputs, "v": inputs["k"]}),
        formats=FORMATS_OF_CACHE,
    ),
    *in_python("attention", scales_of_the_first_block, formats=("Q8_0", "Q4_0")),
)
