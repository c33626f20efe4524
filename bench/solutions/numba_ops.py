"""Ops as one would write them in Numba."""

import math
from typing import Any

import numpy as np
from numba import njit, prange


@njit
def silu(x: Any, out: Any) -> None:
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            out[t, i] = x[t, i] / (1 + math.exp(-np.float64(x[t, i])))


@njit(parallel=True)
def mul(x: Any, y: Any, out: Any) -> None:
    for t in prange(x.shape[0]):
        for i in range(x.shape[1]):
            out[t, i] = x[t, i] * y[t, i]


@njit
def rms_norm(x: Any, weight: Any, eps: float, out: Any) -> None:
    for t in range(x.shape[0]):
        total = 0.0
        for i in range(x.shape[1]):
            total += np.float64(x[t, i]) ** 2
        factor = 1 / math.sqrt(total / x.shape[1] + eps)
        for i in range(x.shape[1]):
            out[t, i] = x[t, i] * factor * weight[i]
