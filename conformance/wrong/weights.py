"""Planted bugs of whatever reads or writes weight formats: linear, embedding, quantisation."""

import numpy as np

from conformance.wrong.wrong import Wrong, computing
from reference.embedding import embedding
from reference.formats import FORMATS
from reference.linear import linear
from reference.op import Array
from reference.quantise_activations import dequantise_activations, quantise_activations

Triple = tuple[Array, Array, Array]


def weights(weight: Array, format: str) -> Array:
    return FORMATS[format].dequantise(weight).astype(np.float64)


def nibbles_swapped(data: Array) -> Array:
    """Q4_0 rows with the halves of each byte exchanged."""
    blocks = data.reshape(*data.shape[:-1], -1, 18).copy()
    quants = blocks[..., 2:]
    blocks[..., 2:] = quants << 4 | quants >> 4
    return blocks.reshape(data.shape)


def tail_dropped(x: Array, weight: Array, format: str) -> Array:
    """Only whole vectors of 16 along hidden."""
    whole = x.shape[1] // 16 * 16
    return x[:, :whole].astype(np.float64) @ weights(weight, format)[:, :whole].T


def last_element_dropped(x: Array, weight: Array, format: str) -> Array:
    return x[:, :-1].astype(np.float64) @ weights(weight, format)[:, :-1].T


def swapped_nibbles(x: Array, weight: Array, format: str) -> Array:
    return linear(x, nibbles_swapped(weight), format)


def offset_of_seven(x: Array, weight: Array, format: str) -> Array:
    scale = weight.reshape(len(weight), -1, 18)[:, :, :2].copy().view(np.float16)
    raised = weights(weight, format) + np.repeat(scale[..., 0].astype(np.float64), 32, axis=1)
    return x.astype(np.float64) @ raised.T


def bytes_unsigned(x: Array, weight: Array, format: str) -> Array:
    blocks = weight.reshape(len(weight), -1, 34)
    scale = blocks[:, :, :2].copy().view(np.float16).astype(np.float64)
    return x.astype(np.float64) @ (scale * blocks[:, :, 2:]).reshape(len(weight), -1).T


def stale_weight_scale(x: Array, weight: Array, format: str) -> Array:
    """Every block with the scale of the block before."""
    size = FORMATS[format].block_bytes
    blocks = weight.reshape(len(weight), -1, size).copy()
    blocks[:, 1:, :2] = blocks[:, :-1, :2].copy()
    return linear(x, blocks.reshape(weight.shape), format)


def stale_activation_scale(x: Array, weight: Array, format: str) -> Array:
    q, scale, _ = quantise_activations(x)
    return linear(dequantise_activations(q, np.roll(scale, 1, axis=1)), weight, format)


def activations_of_seven_bits(x: Array, weight: Array, format: str) -> Array:
    q, scale, _ = quantise_activations(x)
    return linear(dequantise_activations(q // 2 * 2, scale), weight, format)


def float16_sum(x: Array, weight: Array, format: str) -> Array:
    products = x[:, None, :] * weights(weight, format)[None].astype(np.float32)
    return np.add.reduce(products.astype(np.float16), axis=-1, dtype=np.float16)


def last_row_missing(x: Array, weight: Array, format: str) -> Array:
    out = linear(x, weight, format)
    out[:, -1] = 0
    return out


def last_token_missing(x: Array, weight: Array, format: str) -> Array:
    out = linear(x, weight, format)
    out[-1:] = 0
    return out


def transposed(x: Array, weight: Array, format: str) -> Array:
    out = linear(x, weight, format)
    return out.T.reshape(out.shape)


def bfloat16_activations(x: Array, weight: Array, format: str) -> Array:
    short = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return linear(short, weight, format)


def previous_row(tokens: Array, weight: Array, format: str) -> Array:
    return embedding(tokens - 1, weight, format)


def scaled_by_width(tokens: Array, weight: Array, format: str) -> Array:
    return embedding(tokens, weight, format) * np.sqrt(weight.shape[1])


def dequantised_with_nibbles_swapped(data: Array, format: str) -> Array:
    return FORMATS[format].dequantise(nibbles_swapped(data))


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


BUGS = (
    *(Wrong("linear", "tail-dropped", computing(tail_dropped), f) for f in ("F32", "F16", "BF16")),
    *(
        Wrong("linear", bug.__name__.replace("_", "-"), computing(bug), kind)
        for kind in FORMATS
        for bug in (last_element_dropped, float16_sum, last_row_missing, transposed)
    ),
    Wrong("linear", "last-token-missing", computing(last_token_missing), "F32"),
    Wrong("linear", "bfloat16-activations", computing(bfloat16_activations), "F32"),
    Wrong("linear", "nibbles-swapped", computing(swapped_nibbles), "Q4_0"),
    Wrong("linear", "offset-of-seven", computing(offset_of_seven), "Q4_0"),
    Wrong("linear", "bytes-unsigned", computing(bytes_unsigned), "Q8_0"),
    *(
        Wrong("linear", bug.__name__.replace("_", "-"), computing(bug), kind, "int8")
        for kind in ("Q8_0", "Q4_0")
        for bug in (stale_weight_scale, stale_activation_scale, activations_of_seven_bits)
    ),
    *(Wrong("embedding", "previous-row", computing(previous_row), f) for f in ("F32", "Q4_0")),
    Wrong("embedding", "scaled-by-width", computing(scaled_by_width), "F16"),
    Wrong("dequantise", "nibbles-swapped", computing(dequantised_with_nibbles_swapped), "Q4_0"),
    Wrong("quantise", "ties-to-even", computing(ties_to_even_q8_0), "Q8_0"),
    Wrong("quantise", "ties-away-from-zero", computing(ties_away_from_zero), "F16"),
    Wrong("quantise", "ties-away-from-zero", computing(ties_away_from_zero), "BF16"),
    Wrong("quantise", "sign-of-the-extreme", computing(scale_by_magnitude), "Q4_0"),
    Wrong("quantise_activations", "ties-to-even", computing(int8_ties_to_even)),
    Wrong("quantise_activations", "over-128", computing(int8_over_128)),
    Wrong("quantise_activations", "total-of-magnitudes", computing(int8_total_of_magnitudes)),
    Wrong("quantise_activations", "zeros-divided", computing(int8_zeros_divided)),
)
