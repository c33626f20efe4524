"""Planted bugs of the schemes beyond GGUF: integers in groups, floats of eight bits, linears."""

import numpy as np

from conformance.wrong.wrong import Wrong, computing
from reference.op import Array
from reference.schemes.float8 import E4M3, E5M2, Float8, quantise_e4m3, quantise_e5m2
from reference.schemes.integers import (
    dequantise_asymmetric,
    quantise_asymmetric,
    quantise_symmetric,
)
from reference.schemes.linear_float8 import linear_e4m3, linear_e5m2
from reference.schemes.linear_w8a8 import linear_w8a8

Pair, Triple = tuple[Array, Array], tuple[Array, Array, Array]


def ties_away_from_zero(x: Array, bits: int) -> Pair:
    _, scale = quantise_symmetric(x, bits)
    scaled = x / np.where(scale > 0, scale, 1)[:, None]
    return np.trunc(scaled + np.copysign(np.float32(0.5), scaled)), scale


def by_the_inverse(x: Array, bits: int) -> Pair:
    """x times 1 / scale, which is rounded first."""
    _, scale = quantise_symmetric(x, bits)
    inverse = np.float32(1) / np.where(scale > 0, scale, 1)
    return np.where(scale[:, None] > 0, np.rint(x * inverse[:, None]), 0), scale


def one_step_more(x: Array, bits: int) -> Pair:
    """The whole range of int8: max|x| / 128."""
    scale = np.abs(x).max(axis=1) / np.float32(2 ** (bits - 1))
    q = np.rint(x / np.where(scale > 0, scale, 1)[:, None])
    return np.clip(q, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1), scale


def always_eight_bits(x: Array, bits: int) -> Pair:
    return quantise_symmetric(x, 8)


def one_group(x: Array, bits: int) -> Pair:
    """All groups with the tensor's scale."""
    q, scale = quantise_symmetric(x.reshape(1, -1), bits)
    return q.reshape(x.shape), np.resize(scale, len(x))


def range_without_zero(x: Array, bits: int) -> Triple:
    moved = x - x.min(axis=1, keepdims=True)
    q, scale, zero = quantise_asymmetric(moved, bits)
    return q, scale, zero - np.rint(x.min(axis=1) / np.where(scale > 0, scale, 1)).astype(np.int32)


def zero_point_rounded_late(x: Array, bits: int) -> Triple:
    """x / scale and the zero point rounded together."""
    _, scale, zero = quantise_asymmetric(x, bits)
    steps, least = np.where(scale > 0, scale, 1), -(2 ** (bits - 1))
    exact = least - np.minimum(x.min(axis=1), 0) / steps
    late = np.clip(np.rint(x / steps[:, None] + exact[:, None]), least, -least - 1)
    return np.where(scale[:, None] > 0, late, 0), scale, zero


def without_clipping(x: Array, bits: int) -> Triple:
    _, scale, zero = quantise_asymmetric(x, bits)
    steps = np.where(scale > 0, scale, 1)[:, None]
    return np.rint(x / steps).astype(np.int32) + zero[:, None], scale, zero


def zero_point_added(q: Array, scale: Array, zero: Array) -> Array:
    return dequantise_asymmetric(q, scale, -zero)


def truncated(x: Array, kind: Float8, quantised: Pair) -> Pair:
    """Toward zero."""
    q, scale = quantised
    steps = np.where(scale > 0, scale, 1)[:, None]
    return np.where(np.abs(kind.decode(q)) > np.abs(x / steps), q - 1, q), scale


def truncated_e4m3(x: Array) -> Pair:
    return truncated(x, E4M3, quantise_e4m3(x))


def truncated_e5m2(x: Array) -> Pair:
    return truncated(x, E5M2, quantise_e5m2(x))


def as_ieee(x: Array) -> Pair:
    """E4M3 with its last exponent kept for infinities: 240 is the largest."""
    scale = np.abs(x).max(axis=1) / np.float32(240)
    return E4M3.encode(x / np.where(scale > 0, scale, 1)[:, None]), scale


def subnormals_flushed(x: Array) -> Pair:
    q, scale = quantise_e4m3(x)
    return np.where(q & 0x7F < 8, q & 0x80, q), scale


def subnormals_decoded_as_normal(q: Array, scale: Array) -> Array:
    """With the hidden bit that they do not have."""
    low = (q & 0x7F) < 8
    return np.where(low, E4M3.decode(q | 8), E4M3.decode(q)) * scale[:, None]


def other_format(q: Array, scale: Array) -> Array:
    return E5M2.decode(q) * scale[:, None]


def no_weight_zero(x, x_scale, x_zero, weight, weight_scale, weight_zero):
    return linear_w8a8(x, x_scale, x_zero, weight, weight_scale, 0 * weight_zero)


def no_product_of_zeros(x, x_scale, x_zero, weight, weight_scale, weight_zero):
    """The four terms but for size times both zero points."""
    whole = linear_w8a8(x, x_scale, x_zero, weight, weight_scale, weight_zero)
    nothing = 0 * x, x_scale, x_zero, 0 * weight, weight_scale, weight_zero
    return whole - linear_w8a8(*nothing)


def scales_of_the_group_before(x, x_scale, x_zero, weight, weight_scale, weight_zero):
    stale = np.roll(weight_scale, 1, axis=0)
    return linear_w8a8(x, x_scale, x_zero, weight, stale, weight_zero)


def saturated_pairs(x, x_scale, x_zero, weight, weight_scale, weight_zero):
    """Two products added in int16, as vpmaddubsw does."""
    groups, size = x_scale.shape[1], x.shape[1] // x_scale.shape[1]
    out = np.zeros((len(x), len(weight)))
    for g in range(groups):
        part = slice(g * size, (g + 1) * size)
        a, w = x[:, part].astype(np.int64), weight[:, part].astype(np.int64) + 128
        products = np.pad(a[:, None] * w[None], ((0, 0), (0, 0), (0, size % 2)))
        pairs = products.reshape(len(a), len(w), -1, 2).sum(axis=-1)
        dots = np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=-1)
        a_zero, w_zero = x_zero[:, g, None], weight_zero[None, g] + 128
        dots = dots - a_zero * (w.sum(axis=1) - size * w_zero) - w_zero * a.sum(axis=1)[:, None]
        out += dots * np.outer(x_scale[:, g], weight_scale[g]).astype(np.float64)
    return out


def scale_of_another_token(x: Array, x_scale: Array, weight: Array, weight_scale: Array) -> Array:
    return linear_e4m3(x, np.roll(x_scale, 1), weight, weight_scale)


def weights_of_the_other_kind(
    x: Array, x_scale: Array, weight: Array, weight_scale: Array
) -> Array:
    return linear_e5m2(x, x_scale, weight & 0xFE, weight_scale)


BUGS = (
    *(
        Wrong(op, bug.__name__.replace("_", "-"), computing(bug))
        for op, bugs in {
            "quantise_symmetric": (
                ties_away_from_zero,
                by_the_inverse,
                one_step_more,
                always_eight_bits,
                one_group,
            ),
            "quantise_asymmetric": (
                range_without_zero,
                zero_point_rounded_late,
                without_clipping,
            ),
            "dequantise_asymmetric": (zero_point_added,),
            "quantise_e4m3": (truncated_e4m3, as_ieee, subnormals_flushed),
            "quantise_e5m2": (truncated_e5m2,),
            "dequantise_e4m3": (subnormals_decoded_as_normal, other_format),
            "linear_w8a8": (
                no_weight_zero,
                no_product_of_zeros,
                scales_of_the_group_before,
                saturated_pairs,
            ),
            "linear_e4m3": (scale_of_another_token,),
            "linear_e5m2": (weights_of_the_other_kind,),
        }.items()
        for bug in bugs
    ),
)
