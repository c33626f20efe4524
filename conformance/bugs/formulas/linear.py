"""Planted bugs of products with weights, of experts too."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python, sharing
from reference.formats import FORMATS
from reference.linear import linear
from reference.linear_experts import linear_experts, runs
from reference.op import Arguments, Array
from reference.quantise_activations import (
    ROUNDINGS,
    dequantise_activations,
    quantise_activations,
    quantise_activations_256,
    rounding_for,
)


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
    q, scale, _ = ROUNDINGS[rounding_for(format)](x)
    return linear(dequantise_activations(q // 2 * 2, scale), weight, format)


def activations_in_blocks_of_32(x: Array, weight: Array, format: str) -> Array:
    q, scale, _ = quantise_activations(x)
    return linear(dequantise_activations(q, scale), weight, format)


def scale_of_the_first_blocks(x: Array, weight: Array, format: str) -> Array:
    """Of a superblock, as its first 32 activations would have it."""
    q, scale, _ = quantise_activations_256(x)
    _, own, _ = quantise_activations(x)
    first = np.repeat(own[:, ::8], 8, axis=1)
    return linear(dequantise_activations(q, np.minimum(scale, first)), weight, format)


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


SOME = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "MXFP4")


def as_listed(**inputs: Any) -> Array:
    """Weights by the experts' numbers, not where they are held."""
    held, experts = len(inputs["weight"]), len(inputs["slots"])
    return linear_experts(**{**inputs, "slots": np.arange(experts) % held})


def begins_one_late(**inputs: Any) -> Array:
    """An expert's first token goes to the one before."""
    ends = inputs["ends"].copy()
    used = [expert for expert, *_ in runs(ends)]
    for before in used[:-1]:
        ends[before:] = np.where(ends[before:] == ends[before], ends[before] + 1, ends[before:])
    return linear_experts(**{**inputs, "ends": ends})


def one_expert_for_all(**inputs: Any) -> Array:
    found = runs(inputs["ends"])
    if found:
        slots = np.full_like(inputs["slots"], inputs["slots"][found[0][0]])
        inputs = {**inputs, "slots": slots}
    return linear_experts(**inputs)


def sixteen_tokens_at_most(**inputs: Any) -> Array:
    """Of an expert only so many tokens are met."""
    out = linear_experts(**inputs)
    for _, begin, end in runs(inputs["ends"]):
        out[begin + 16 : end] = 0
    return out


def last_expert_left_out(**inputs: Any) -> Array:
    out = linear_experts(**inputs)
    for _, begin, _ in runs(inputs["ends"])[-1:]:
        out[begin:] = 0
    return out


def not_stored(inputs: Arguments, outputs: dict[str, Array], thread: int, n_threads: int) -> None:
    """Tokens of experts beyond the 256th are left as they were."""
    if thread == 0:
        end = inputs["ends"][:256][-1]
        outputs["out"][:end] = linear_experts(**inputs)[:end]


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
    *in_python(
        "linear",
        activations_in_blocks_of_32,
        scale_of_the_first_blocks,
        activations_of_seven_bits,
        formats=("Q4_K", "Q6_K"),
        activations="int8_256",
    ),
    *in_python(
        "linear_experts",
        as_listed,
        begins_one_late,
        one_expert_for_all,
        sixteen_tokens_at_most,
        last_expert_left_out,
        formats=SOME,
    ),
    *sharing("linear_experts", not_stored, formats=("F32", "Q4_0")),
)
