"""add, add_bias, mul, mul_columns, scale, softcap on the CPU: tokens are split among threads."""

import numpy as np
from numba import njit

from kernels.cpu.isa.lanes import fabs, where
from kernels.cpu.isa.simd import fma, polynomial
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.sweep import each, each_row, load_some, store_some
from reference.arithmetic import OPS

ADD, ADD_BIAS, MUL, MUL_COLUMNS, SCALE, SOFTCAP = (op.signature for op in OPS)


@each(ADD)
def add(x, y):
    return x + y


@each_row(ADD_BIAS)
def add_bias(t, x, bias, out):
    width = x.shape[1]
    row, target = x[t], out[t]
    for i in range(0, width, 16):
        store_some(target, i, width, load_some(row, i, width) + load_some(bias, i, width))


@each(MUL)
def mul(x, y):
    return x * y


@each_row(MUL_COLUMNS)
def mul_columns(t, x, factors, out):
    width = x.shape[1]
    row, target = x[t], out[t]
    for i in range(0, width, 16):
        store_some(target, i, width, load_some(row, i, width) * load_some(factors, i, width))


@each(SCALE)
def scale(x, factor):
    return x * np.float32(factor)


of_square = polynomial(
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1
)


@njit(inline="always")
def tanh(x):
    """Cephes' tanhf: below 0.625 a polynomial, since 1 - 2 / (e^2x + 1) loses digits there."""
    square, size = x * x, fabs(x)
    near = fma(of_square(square) * square, x, x)
    far = 1.0 - 2.0 / (exp(size + size) + 1.0)
    far = where(x < 0.0, 0.0 - far, far)
    return where(size > 0.625, far, near)


@each(SOFTCAP)
def softcap(x, cap):
    return np.float32(cap) * tanh(x / np.float32(cap))
