"""layer_norm on the CPU: tokens are shared among threads.

- `generic`: sixteen elements at a time, sixteen partial sums in float32. The mean is taken twice,
  of the row and of what is left of it: a mean far from zero then costs no digits.
- `scalar`: plain loops, the sums in float64; the fallback.
"""

import math

import numpy as np
from numba import njit

from kernels.cpu.isa.simd import add, f32x16, fma, load, mul, splat, sub, sum_lanes, zero
from kernels.cpu.isa.sweep import each_row, load_some, store_some
from reference.layer_norm import OP

SIGNATURE = OP.signature


@njit(inline="always")
def mean_beside(row, mean):
    """The mean of row - mean."""
    hidden = len(row)
    whole = hidden - hidden % 16
    sums = zero(f32x16)
    for i in range(0, whole, 16):
        sums = add(sums, sub(load(f32x16, row, i), splat(f32x16, mean)))
    total = sum_lanes(sums)
    for i in range(whole, hidden):
        total += row[i] - mean
    return total / np.float32(hidden)


@njit(inline="always")
def sum_of_squares(row, mean):
    """The sum of (row - mean)^2."""
    hidden = len(row)
    whole = hidden - hidden % 16
    sums = zero(f32x16)
    for i in range(0, whole, 16):
        centred = sub(load(f32x16, row, i), splat(f32x16, mean))
        sums = fma(centred, centred, sums)
    total = sum_lanes(sums)
    for i in range(whole, hidden):
        total += (row[i] - mean) * (row[i] - mean)
    return total


@each_row(SIGNATURE)
def generic(t, x, weight, bias, eps, out):
    hidden = x.shape[1]
    row, target = x[t], out[t]
    mean = mean_beside(row, np.float32(0))
    mean += mean_beside(row, mean)
    factor = splat(f32x16, 1.0 / math.sqrt(sum_of_squares(row, mean) / hidden + eps))
    for i in range(0, hidden, 16):
        centred = sub(load_some(row, i, hidden), splat(f32x16, mean))
        scaled = mul(centred, factor)
        normed = fma(scaled, load_some(weight, i, hidden), load_some(bias, i, hidden))
        store_some(target, i, hidden, normed)


@each_row(SIGNATURE)
def scalar(t, x, weight, bias, eps, out):
    hidden = x.shape[1]
    mean, squares = 0.0, 0.0
    for i in range(hidden):
        mean += float(x[t, i])
    mean /= hidden
    for i in range(hidden):
        squares += (float(x[t, i]) - mean) * (float(x[t, i]) - mean)
    factor = 1.0 / math.sqrt(squares / hidden + eps)
    for i in range(hidden):
        scaled = (float(x[t, i]) - mean) * factor
        out[t, i] = scaled * float(weight[i]) + float(bias[i])
