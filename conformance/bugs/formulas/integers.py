"""Planted bugs of integers."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.op import Array
from reference.schemes.integers import (
    dequantise_asymmetric,
    quantise_asymmetric,
    quantise_symmetric,
)

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
)
