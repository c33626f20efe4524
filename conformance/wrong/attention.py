"""Planted bugs of attention, rotary embedding and the KV cache."""

from typing import Any

import numpy as np

from conformance.wrong.wrong import Wrong, computing
from reference.attention import attention
from reference.formats import FORMATS
from reference.kv_write import FORMATS_OF_CACHE, kv_write
from reference.op import Array
from reference.rope import rope_neox, rope_norm, rotation

Inputs = dict[str, Any]


def changed_spans(inputs: Inputs, begin: int, end: int) -> Array:
    """Attention whose spans begin and end so many cells later."""
    capacity = inputs["lists"].shape[1]
    spans = np.clip(inputs["spans"] + [0, begin, end], 0, None)
    spans[:, 1:] = np.minimum(spans[:, 1:], capacity)
    return attention(**{**inputs, "spans": spans})


def sees_the_future(**inputs: Any) -> Array:
    return changed_spans(inputs, 0, 1)


def misses_itself(**inputs: Any) -> Array:
    return changed_spans(inputs, 0, -1)


def window_one_longer(**inputs: Any) -> Array:
    return changed_spans(inputs, -1, 0)


def unscaled(**inputs: Any) -> Array:
    return attention(**{**inputs, "scale": 1.0})


def slopes_upside_down(**inputs: Any) -> Array:
    return attention(**{**inputs, "slopes": -inputs["slopes"]})


def no_slopes(**inputs: Any) -> Array:
    return attention(**{**inputs, "slopes": np.zeros_like(inputs["slopes"])})


def uncapped(**inputs: Any) -> Array:
    return attention(**{**inputs, "softcap": 0.0})


def first_sequence_only(**inputs: Any) -> Array:
    return attention(**{**inputs, "lists": np.tile(inputs["lists"][:1], (len(inputs["lists"]), 1))})


def cells_in_memory_order(**inputs: Any) -> Array:
    lists = np.tile(np.arange(inputs["lists"].shape[1]), (len(inputs["lists"]), 1))
    return attention(**{**inputs, "lists": lists})


def keys_as_values(**inputs: Any) -> Array:
    return attention(**{**inputs, "v": inputs["k"]})


def heads_taken_in_turns(**inputs: Any) -> Array:
    """Query head h reads KV head h % kv_heads."""
    q, layout = inputs["q"], FORMATS[inputs["format"]]
    heads, head_dim = q.shape[1:]
    kv_heads = inputs["k"].shape[1] // layout.block_bytes * layout.block // head_dim
    order = np.argsort(np.arange(heads) % kv_heads, kind="stable")
    turns = {"q": q[:, order], "slopes": inputs["slopes"][order]}
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
    step = FORMATS[inputs["format"]].block_bytes
    stale = {}
    for name in ("k", "v"):
        blocks = inputs[name].reshape(len(inputs[name]), -1, step).copy()
        blocks[:, :, :2] = blocks[:, :1, :2]
        stale[name] = blocks.reshape(inputs[name].shape)
    return attention(**{**inputs, **stale})


def norm_as_neox(x: Array, rotation: Array) -> Array:
    return rope_neox(x, rotation)


def neox_as_norm(x: Array, rotation: Array) -> Array:
    return rope_norm(x, rotation)


def turned_backwards(x: Array, rotation: Array) -> Array:
    return rope_norm(x, rotation * np.float32([1, -1]))


def first_head_only(x: Array, rotation: Array) -> Array:
    return np.concatenate([rope_neox(x[:, :1], rotation), x[:, 1:]], axis=1)


def tail_forgotten(x: Array, rotation: Array) -> Array:
    out = rope_neox(x, rotation)
    out[:, :, 2 * rotation.shape[1] :] = 0
    return out


def position_off_by_one(positions: Array, frequencies: Array, magnitude: float) -> Array:
    return rotation(positions + 1, frequencies, magnitude)


def angles_in_float32(positions: Array, frequencies: Array, magnitude: float) -> Array:
    angle = positions[:, None].astype(np.float32) * frequencies.astype(np.float32)
    return magnitude * np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def sine_before_cosine(positions: Array, frequencies: Array, magnitude: float) -> Array:
    return rotation(positions, frequencies, magnitude)[..., ::-1]


def without_magnitude(positions: Array, frequencies: Array, magnitude: float) -> Array:
    return rotation(positions, frequencies, 1.0)


def into_the_next_cell(x: Array, cells: Array, before: Array, format: str) -> Array:
    return kv_write(x, (cells + 1) % max(1, len(before)), before, format)


def into_cells_in_order(x: Array, cells: Array, before: Array, format: str) -> Array:
    return kv_write(x, np.arange(len(cells)), before, format)


def rounded_toward_zero(x: Array, cells: Array, before: Array, format: str) -> Array:
    half = x.astype(np.float16)
    beyond = np.abs(half.astype(np.float32)) > np.abs(x)
    out = before.copy()
    out[cells] = np.where(beyond, np.nextafter(half, np.float16(0)), half).view(np.uint8)
    return out


def steps_rounded_down(x: Array, cells: Array, before: Array, format: str) -> Array:
    """Q8_0 whose steps are floor(x / d): the scale is right, half of the values are one off."""
    out = kv_write(x, cells, before, format)
    blocks = out[cells].reshape(-1, 34)
    largest = np.abs(x.reshape(-1, 32)).max(axis=1, keepdims=True, initial=0)
    steps = np.floor(x.reshape(-1, 32) * (127 / np.maximum(largest, 1e-30)))
    blocks[:, 2:] = steps.astype(np.int8).view(np.uint8)
    out[cells] = blocks.reshape(len(cells), -1)
    return out


def last_token_lost(x: Array, cells: Array, before: Array, format: str) -> Array:
    return kv_write(x[:-1], cells[:-1], before, format)


BUGS = (
    *(
        Wrong("attention", bug.__name__.replace("_", "-"), computing(bug), kind)
        for kind in FORMATS_OF_CACHE
        for bug in (
            sees_the_future,
            misses_itself,
            window_one_longer,
            unscaled,
            slopes_upside_down,
            no_slopes,
            uncapped,
            first_sequence_only,
            cells_in_memory_order,
            keys_as_values,
            heads_taken_in_turns,
            without_max,
            halves_averaged,
        )
    ),
    *(
        Wrong("attention", "first-block's-scale", computing(scales_of_the_first_block), kind)
        for kind in ("Q8_0", "Q4_0")
    ),
    Wrong("rope_norm", "pairs-of-neox", computing(norm_as_neox)),
    Wrong("rope_neox", "pairs-of-norm", computing(neox_as_norm)),
    Wrong("rope_norm", "sign", computing(turned_backwards)),
    Wrong("rope_neox", "first-head-only", computing(first_head_only)),
    Wrong("rope_neox", "tail-forgotten", computing(tail_forgotten)),
    Wrong("rotation", "position-off-by-one", computing(position_off_by_one)),
    Wrong("rotation", "float32-angles", computing(angles_in_float32)),
    Wrong("rotation", "sine-first", computing(sine_before_cosine)),
    Wrong("rotation", "no-magnitude", computing(without_magnitude)),
    Wrong("kv_write", "next-cell", computing(into_the_next_cell), "F16"),
    Wrong("kv_write", "cells-in-order", computing(into_cells_in_order), "F32"),
    Wrong("kv_write", "rounded-toward-zero", computing(rounded_toward_zero), "F16"),
    Wrong("kv_write", "last-token-lost", computing(last_token_lost), "F32"),
    Wrong("kv_write", "steps-rounded-down", computing(steps_rounded_down), "Q8_0"),
    Wrong("kv_write", "next-cell", computing(into_the_next_cell), "Q4_0"),
)
