"""Planted bugs of what is quantised: weights and activations."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from conformance.bugs.formulas.linear import nibbles_swapped
from reference.formats import FORMATS
from reference.op import Array
from reference.quantise_activations import quantise_activations, quantise_activations_256
from reference.weight_formats import dequantise


def ties_to_even_q8_0(x: Array, format: str) -> Array:
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    inverse = np.where(d == 0, np.float32(0), np.float32(1) / d)
    q = np.rint(blocks * inverse).astype(np.int8)
    out = np.concatenate([d.astype(np.float16).view(np.uint8), q.view(np.uint8)], axis=1)
    return out.reshape(len(x), x.shape[1] // 32 * 34)


def ties_away_from_zero(x: Array, format: str) -> Array:
    """F16 or BF16 whose halfway cases grow in magnitude: exact but for ties."""
    nudged = np.where(x == 0, x, (x.view(np.uint32) + 1).view(np.float32))
    return FORMATS[format].quantise(nudged)


def scale_by_magnitude(x: Array, format: str) -> Array:
    """Q4_0 with the sign of its extreme forgotten."""
    blocks = x.reshape(-1, 32)
    at = np.abs(blocks).argmax(axis=1)[:, None]
    flipped = blocks * np.sign(-np.take_along_axis(blocks, at, axis=1))
    return FORMATS[format].quantise(flipped.reshape(x.shape))


Triple = tuple[Array, Array, Array]


def int8_ties_to_even(x: Array) -> Triple:
    q, scale, _ = quantise_activations(x)
    steps = np.repeat(scale, 32, axis=1)
    inverse = np.where(steps > 0, np.float32(1) / steps, 0).astype(np.float32)
    q = np.rint(x * np.where(np.isinf(inverse), 0, inverse)).astype(np.int8)
    return q, scale, q.reshape(*scale.shape, 32).sum(axis=-1)


def int8_over_128(x: Array) -> Triple:
    q, scale, total = quantise_activations(x)
    return q, scale * np.float32(127 / 128), total


def int8_total_of_magnitudes(x: Array) -> Triple:
    q, scale, _ = quantise_activations(x)
    return q, scale, np.abs(q.astype(int)).reshape(*scale.shape, 32).sum(axis=-1)


def int8_zeros_divided(x: Array) -> Triple:
    q, scale, total = quantise_activations(x)
    return q, np.where(scale == 0, np.float32(np.nan), scale), total


def int8_last_block_left_out(x: Array) -> Triple:
    """The scale is that of the first seven blocks of a superblock."""
    without = x.reshape(len(x), -1, 8, 32).copy()
    without[:, :, -1] = 0
    _, scale, _ = quantise_activations_256(without.reshape(x.shape))
    q, _, total = quantise_activations_256(x)
    return q, scale, total


BUGS = (
    *in_python(
        "quantise_weighted",
        importance_not_relative=lambda x, importance, format: FORMATS[format].quantise_weighted(
            x, importance + np.float32(0.1)
        ),
        formats=("Q4_0", "Q4_K"),
    ),
    *in_python(
        "dequantise",
        dequantised_with_nibbles_swapped=changed(dequantise, data=nibbles_swapped),
        formats=("Q4_0",),
    ),
    *in_python("quantise", ties_to_even_q8_0, formats=("Q8_0",)),
    *in_python("quantise", ties_away_from_zero, formats=("F16", "BF16")),
    *in_python("quantise", scale_by_magnitude, formats=("Q4_0",)),
    *in_python(
        "quantise_activations",
        int8_ties_to_even,
        int8_over_128,
        int8_total_of_magnitudes,
        int8_zeros_divided,
    ),
    *in_python("quantise_activations_256", int8_last_block_left_out, quantise_activations),
)
