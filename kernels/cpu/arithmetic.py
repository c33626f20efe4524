"""add, add_bias, mul, mul_columns, scale, softcap on the CPU: tokens are shared among threads."""

import numpy as np
from numba import njit

from kernels.cpu.isa.lanes import fabs, where
from kernels.cpu.isa.simd import add as plus
from kernels.cpu.isa.simd import div, f32x16, fma, splat, sub, zero
from kernels.cpu.isa.simd import mul as times
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.sweep import load_some, own_elements, store_some
from kernels.cpu.runtime.share import arguments, part, share
from reference.arithmetic import OPS

ADD, ADD_BIAS, MUL, MUL_COLUMNS, SCALE, SOFTCAP = (op.signature for op in OPS)


@share(ADD)
def add(block, thread, n_threads):
    x, y, out = arguments(block, ADD)
    first, last = own_elements(x, thread, n_threads)
    for i in range(first, last, 16):
        store_some(out, i, last, plus(load_some(x, i, last), load_some(y, i, last)))


@share(ADD_BIAS)
def add_bias(block, thread, n_threads):
    x, bias, out = arguments(block, ADD_BIAS)
    tokens, width = x.shape
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
        row, target = x[t], out[t]
        for i in range(0, width, 16):
            total = plus(load_some(row, i, width), load_some(bias, i, width))
            store_some(target, i, width, total)


@share(MUL)
def mul(block, thread, n_threads):
    x, y, out = arguments(block, MUL)
    first, last = own_elements(x, thread, n_threads)
    for i in range(first, last, 16):
        store_some(out, i, last, times(load_some(x, i, last), load_some(y, i, last)))


@share(MUL_COLUMNS)
def mul_columns(block, thread, n_threads):
    x, factors, out = arguments(block, MUL_COLUMNS)
    tokens, width = x.shape
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
        row, target = x[t], out[t]
        for i in range(0, width, 16):
            total = times(load_some(row, i, width), load_some(factors, i, width))
            store_some(target, i, width, total)


@share(SCALE)
def scale(block, thread, n_threads):
    x, factor, out = arguments(block, SCALE)
    first, last = own_elements(x, thread, n_threads)
    factors = splat(f32x16, np.float32(factor))
    for i in range(first, last, 16):
        store_some(out, i, last, times(load_some(x, i, last), factors))


@njit(inline="always")
def tanh(x):
    """Cephes' tanhf: below 0.625 a polynomial, for 1 - 2 / (e^2x + 1) loses its digits there."""
    square, size, one = times(x, x), fabs(x), splat(f32x16, 1.0)
    p = fma(splat(f32x16, -5.70498872745e-3), square, splat(f32x16, 2.06390887954e-2))
    p = fma(p, square, splat(f32x16, -5.37397155531e-2))
    p = fma(p, square, splat(f32x16, 1.33314422036e-1))
    p = fma(p, square, splat(f32x16, -3.33332819422e-1))
    near = fma(times(p, square), x, x)
    far = sub(one, div(splat(f32x16, 2.0), plus(exp(plus(size, size)), one)))
    far = where(x < zero(f32x16), sub(zero(f32x16), far), far)
    return where(size > splat(f32x16, 0.625), far, near)


@share(SOFTCAP)
def softcap(block, thread, n_threads):
    x, cap, out = arguments(block, SOFTCAP)
    first, last = own_elements(x, thread, n_threads)
    caps = splat(f32x16, np.float32(cap))
    for i in range(first, last, 16):
        store_some(out, i, last, times(caps, tanh(div(load_some(x, i, last), caps))))
