"""Planted bugs of quantisation by a scheme of one's own."""

import numpy as np

from conformance.bugs.bug import changed, in_python
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


def truncated(x: Array, kind: Float8, quantised: Pair) -> Pair:
    """Toward zero."""
    q, scale = quantised
    steps = np.where(scale > 0, scale, 1)[:, None]
    return np.where(np.abs(kind.decode(q)) > np.abs(x / steps), q - 1, q), scale


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


def no_product_of_zeros(**given):
    """The four terms but for size times both zero points."""
    nothing = {**given, "x": 0 * given["x"], "weight": 0 * given["weight"]}
    return linear_w8a8(**given) - linear_w8a8(**nothing)


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


BUGS = (
    *in_python(
        "quantise_symmetric",
        ties_away_from_zero,
        by_the_inverse,
        one_step_more,
        one_group,
        always_eight_bits=changed(quantise_symmetric, bits=8),
    ),
    *in_python(
        "quantise_asymmetric", range_without_zero, zero_point_rounded_late, without_clipping
    ),
    *in_python(
        "dequantise_asymmetric",
        zero_point_added=changed(dequantise_asymmetric, zero=np.negative),
    ),
    *in_python(
        "quantise_e4m3",
        as_ieee,
        subnormals_flushed,
        truncated_e4m3=lambda x: truncated(x, E4M3, quantise_e4m3(x)),
    ),
    *in_python("quantise_e5m2", truncated_e5m2=lambda x: truncated(x, E5M2, quantise_e5m2(x))),
    *in_python(
        "dequantise_e4m3",
        subnormals_decoded_as_normal,
        other_format=lambda q, scale: E5M2.decode(q) * scale[:, None],
    ),
    *in_python(
        "linear_w8a8",
        no_product_of_zeros,
        saturated_pairs,
        scales_of_the_group_before=changed(
            linear_w8a8, weight_scale=lambda scales: np.roll(scales, 1, axis=0)
        ),
        no_weight_zero=changed(linear_w8a8, weight_zero=np.zeros_like),
    ),
    *in_python(
        "linear_e4m3",
        scale_of_another_token=changed(linear_e4m3, x_scale=lambda scale: np.roll(scale, 1)),
    ),
    *in_python(
        "linear_e5m2",
        weights_of_the_other_kind=changed(linear_e5m2, weight=lambda codes: codes & 0xFE),
    ),
)
