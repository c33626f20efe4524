"""silu, gelu, gelu_erf, relu, squared_relu, softplus and sigmoid on the CPU: tokens are shared
among threads."""

import numpy as np
from numba import njit

from kernels.cpu.isa.lanes import fabs
from kernels.cpu.isa.simd import add, div, f32x16, fma, maximum, minimum, mul, splat, sub, zero
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.sweep import load_some, own_elements, store_some
from kernels.cpu.runtime.share import arguments, share
from reference.activations import OPS

SIGNATURE = OPS[0].signature
LARGEST = float(np.finfo(np.float32).max)


@njit(inline="always")
def over_one_plus_exp(x, exponent):
    """x / (1 + e^exponent)."""
    return div(x, add(splat(f32x16, 1.0), exp(exponent)))


@njit(inline="always")
def silu_of(x):
    return over_one_plus_exp(x, sub(zero(f32x16), x))


@njit(inline="always")
def gelu_of(x):
    """x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))."""
    cubic = fma(mul(x, x), splat(f32x16, 0.044715), splat(f32x16, 1.0))
    return over_one_plus_exp(x, mul(mul(cubic, x), splat(f32x16, -1.5957691216057308)))


@njit(inline="always")
def gelu_erf_of(x):
    """max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, erfc as in Numerical Recipes (6.2).

    Infinity passes as the largest number would; minus infinity becomes NaN.
    """
    size = maximum(sub(zero(f32x16), x), minimum(splat(f32x16, LARGEST), x))
    one = splat(f32x16, 1.0)
    t = div(one, fma(size, splat(f32x16, 0.35355339059327373), one))
    p = fma(splat(f32x16, 0.17087277), t, splat(f32x16, -0.82215223))
    p = fma(p, t, splat(f32x16, 1.48851587))
    p = fma(p, t, splat(f32x16, -1.13520398))
    p = fma(p, t, splat(f32x16, 0.27886807))
    p = fma(p, t, splat(f32x16, -0.18628806))
    p = fma(p, t, splat(f32x16, 0.09678418))
    p = fma(p, t, splat(f32x16, 0.37409196))
    p = fma(p, t, splat(f32x16, 1.00002368))
    p = fma(p, t, splat(f32x16, -1.26551223))
    exponent = fma(mul(x, splat(f32x16, -0.5)), x, p)
    tail = mul(mul(splat(f32x16, 0.5), t), exp(exponent))
    return sub(maximum(x, zero(f32x16)), mul(size, tail))


@share(SIGNATURE)
def silu(block, thread, n_threads):
    x, out = arguments(block, SIGNATURE)
    first, last = own_elements(x, thread, n_threads)
    for i in range(first, last, 16):
        store_some(out, i, last, silu_of(load_some(x, i, last)))


@share(SIGNATURE)
def gelu(block, thread, n_threads):
    x, out = arguments(block, SIGNATURE)
    first, last = own_elements(x, thread, n_threads)
    for i in range(first, last, 16):
        store_some(out, i, last, gelu_of(load_some(x, i, last)))


@share(SIGNATURE)
def gelu_erf(block, thread, n_threads):
    x, out = arguments(block, SIGNATURE)
    first, last = own_elements(x, thread, n_threads)
    for i in range(first, last, 16):
        store_some(out, i, last, gelu_erf_of(load_some(x, i, last)))


@njit(inline="always")
def relu_of(value):
    """max(value, 0), but NaN stays NaN."""
    return np.float32(0) if value < 0 else value


@share(SIGNATURE)
def relu(block, thread, n_threads):
    x, out = arguments(block, SIGNATURE)
    source, target = x.ravel(), out.ravel()
    first, last = own_elements(x, thread, n_threads)
    for i in range(first, last):
        target[i] = relu_of(source[i])


@share(SIGNATURE)
def squared_relu(block, thread, n_threads):
    x, out = arguments(block, SIGNATURE)
    source, target = x.ravel(), out.ravel()
    first, last = own_elements(x, thread, n_threads)
    for i in range(first, last):
        value = relu_of(source[i])
        target[i] = value * value


@njit(inline="always")
def log1p_of(e):
    """log(1 + e) for 0 <= e <= 1: 2 atanh(z), z = e / (2 + e) <= 1/3, by its series, of which the
    first term left out is below 2^-28."""
    z = div(e, add(e, splat(f32x16, 2.0)))
    square = mul(z, z)
    p = splat(f32x16, 2.0 / 15.0)
    p = fma(p, square, splat(f32x16, 2.0 / 13.0))
    p = fma(p, square, splat(f32x16, 2.0 / 11.0))
    p = fma(p, square, splat(f32x16, 2.0 / 9.0))
    p = fma(p, square, splat(f32x16, 2.0 / 7.0))
    p = fma(p, square, splat(f32x16, 2.0 / 5.0))
    p = fma(p, square, splat(f32x16, 2.0 / 3.0))
    return fma(mul(p, square), z, add(z, z))


@share(SIGNATURE)
def softplus(block, thread, n_threads):
    """NaN stays NaN."""
    x, out = arguments(block, SIGNATURE)
    first, last = own_elements(x, thread, n_threads)
    for i in range(first, last, 16):
        value = load_some(x, i, last)
        tail = log1p_of(exp(sub(zero(f32x16), fabs(value))))
        store_some(out, i, last, add(maximum(zero(f32x16), value), tail))


@share(SIGNATURE)
def sigmoid(block, thread, n_threads):
    x, out = arguments(block, SIGNATURE)
    first, last = own_elements(x, thread, n_threads)
    one = splat(f32x16, 1.0)
    for i in range(first, last, 16):
        value = sub(zero(f32x16), load_some(x, i, last))
        store_some(out, i, last, over_one_plus_exp(one, value))
