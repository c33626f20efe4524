"""Planted bugs of float8."""

import numpy as np

from conformance.bugs.bug import in_python
from reference.op import Array
from reference.schemes.float8 import E4M3, E5M2, Float8, quantise_e4m3, quantise_e5m2

Pair, Triple = tuple[Array, Array], tuple[Array, Array, Array]


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


BUGS = (
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
)
