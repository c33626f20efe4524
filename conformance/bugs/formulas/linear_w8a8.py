"""Planted bugs of linear_w8a8."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.schemes.linear_w8a8 import linear_w8a8


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


BUGS = in_python(
    "linear_w8a8",
    no_product_of_zeros,
    saturated_pairs,
    scales_of_the_group_before=changed(
        linear_w8a8, weight_scale=lambda scales: np.roll(scales, 1, axis=0)
    ),
    no_weight_zero=changed(linear_w8a8, weight_zero=np.zeros_like),
)
