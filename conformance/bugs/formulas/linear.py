"""Planted bugs of linear."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.formats import FORMATS
from reference.linear import linear
from reference.op import Array
from reference.quantise_activations import dequantise_activations, quantise_activations


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


def bfloat16(x: Array) -> Array:
    return (x.view(np.uint32) & 0xFFFF0000).view(np.float32)


BUGS = (
    *in_python("linear", tail_dropped, formats=("F32", "F16", "BF16")),
    *in_python(
        "linear",
        float16_sum,
        last_row_missing,
        transposed,
        last_element_dropped=lambda x, weight, format: (
            x[:, :-1].astype(np.float64) @ weights(weight, format)[:, :-1].T
        ),
        formats=FORMATS,
    ),
    *in_python(
        "linear",
        last_token_missing,
        bfloat16_activations=changed(linear, x=bfloat16),
        formats=("F32",),
    ),
    *in_python(
        "linear",
        offset_of_seven,
        swapped_nibbles=changed(linear, weight=nibbles_swapped),
        formats=("Q4_0",),
    ),
    *in_python("linear", bytes_unsigned, formats=("Q8_0",)),
    *in_python(
        "linear",
        stale_weight_scale,
        stale_activation_scale,
        activations_of_seven_bits,
        formats=("Q8_0", "Q4_0"),
        activations="int8",
    ),
)
