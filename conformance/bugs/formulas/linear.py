"""Planted bugs of products with weights, including those of experts."""

import numpy as np

from conformance.bugs.bug import in_python, sharing
from reference.formats import FORMATS
from reference.linear import linear
from reference.linear_experts import linear_experts
from reference.op import Arguments, Array
from reference.quantise_activations import (
    ROUNDINGS,
    dequantise_activations,
    quantise_activations,
    quantise_activations_256,
    rounding_for,
)


def stale_weight_scale(x: Array, weight: Array, format: str) -> Array:
    """Every block uses the previous block's scale."""
    size = FORMATS[format].block_bytes
    blocks = weight.reshape(len(weight), -1, size).copy()
    blocks[:, 1:, :2] = blocks[:, :-1, :2].copy()
    return linear(x, blocks.reshape(weight.shape), format)


def stale_activation_scale(x: Array, weight: Array, format: str) -> Array:
    q, scale, _ = quantise_activations(x)
    return linear(dequantise_activations(q, np.roll(scale, 1, axis=1)), weight, format)


def activations_of_seven_bits(x: Array, weight: Array, format: str) -> Array:
    q, scale, _ = ROUNDINGS[rounding_for(format)](x)
    return linear(dequantise_activations(q // 2 * 2, scale), weight, format)


def activations_in_blocks_of_32(x: Array, weight: Array, format: str) -> Array:
    q, scale, _ = quantise_activations(x)
    return linear(dequantise_activations(q, scale), weight, format)


def scale_of_the_first_blocks(x: Array, weight: Array, format: str) -> Array:
    """A superblock uses the scale of its first 32 activations."""
    q, scale, _ = quantise_activations_256(x)
    _, own, _ = quantise_activations(x)
    first = np.repeat(own[:, ::8], 8, axis=1)
    return linear(dequantise_activations(q, np.minimum(scale, first)), weight, format)


def not_stored(inputs: Arguments, outputs: dict[str, Array], thread: int, n_threads: int) -> None:
    """Outputs of experts after the 256th are not stored."""
    if thread == 0:
        end = inputs["ends"][:256][-1]
        outputs["out"][:end] = linear_experts(**inputs)[:end]


BUGS = (
    *in_python(
        "linear",
        stale_weight_scale,
        stale_activation_scale,
        activations_of_seven_bits,
        formats=("Q8_0", "Q4_0"),
        activations="int8",
    ),
    *in_python(
        "linear",
        activations_in_blocks_of_32,
        scale_of_the_first_blocks,
        activations_of_seven_bits,
        formats=("Q4_K", "Q6_K"),
        activations="int8_256",
    ),
    *sharing("linear_experts", not_stored, formats=("F32", "Q4_0")),
)
