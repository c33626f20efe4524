"""Planted bugs of softmax."""

import math

import numpy as np

from conformance.bugs.bug import in_python
from reference import softmax
from reference.op import Array


def softmax_without_max(x: Array) -> Array:
    powers = np.exp(x)
    return powers / powers.sum(axis=1, keepdims=True)


def softmax_missing_the_last(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf).astype(np.float64))
    return powers / powers[:, :-1].sum(axis=1, keepdims=True)


BUGS = in_python(
    "softmax",
    softmax_without_max,
    softmax_missing_the_last,
    softmax_of_powers_of_two=lambda x: softmax.softmax(x * math.log(2)),
    softmax_over_tokens=lambda x: softmax.softmax(x.T).T,
    softmax_unmasked=lambda x: softmax.softmax(np.where(np.isinf(x), 0, x)),
)
