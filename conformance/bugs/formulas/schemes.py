"""Planted bugs of quantisation in groups."""

import numpy as np

from conformance.bugs.bug import in_python
from reference.op import Array


def saturated_pairs(
    x: Array, x_scale: Array, x_zero: Array, weight: Array, weight_scale: Array, weight_zero: Array
) -> Array:
    """Pairs of products are added in saturating int16, as by vpmaddubsw."""
    groups, size = x_scale.shape[1], x.shape[1] // x_scale.shape[1]
    out = np.zeros((len(x), len(weight)))
    for g in range(groups):
        part = slice(g * size, (g + 1) * size)
        a, w = x[:, part].astype(np.int64), weight[:, part].astype(np.int64) + 128
        products = np.pad(a[:, None] * w[None], ((0, 0), (0, 0), (0, size % 2)))
        pairs = products.reshape(len(a), len(w), (size + 1) // 2, 2).sum(axis=-1)
        dots = np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=-1)
        a_zero, w_zero = x_zero[:, g, None], weight_zero[None, g] + 128
        dots = dots - a_zero * (w.sum(axis=1) - size * w_zero) - w_zero * a.sum(axis=1)[:, None]
        out += dots * np.outer(x_scale[:, g], weight_scale[g]).astype(np.float64)
    return out


BUGS = in_python("linear_w8a8", saturated_pairs)
