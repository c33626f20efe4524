"""Planted bugs of quantise_activations."""

import numpy as np

from conformance.bugs.bug import in_python
from reference.op import Array
from reference.quantise_activations import quantise_activations

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


BUGS = in_python(
    "quantise_activations",
    int8_ties_to_even,
    int8_over_128,
    int8_total_of_magnitudes,
    int8_zeros_divided,
)
