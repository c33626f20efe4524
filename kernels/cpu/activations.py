"""silu, gelu, gelu_erf, relu, squared_relu, softplus and sigmoid on the CPU: tokens are split among
threads."""

import numpy as np
from numba import njit

from kernels.cpu.isa.lanes import fabs
from kernels.cpu.isa.simd import f32x16, fma, maximum, minimum, polynomial, splat, zero
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.sweep import each
from reference.activations import OPS

SIGNATURE = OPS[0].signature
LARGEST = float(np.finfo(np.float32).max)


@njit(inline="always")
def over_one_plus_exp(x, exponent):
    """x / (1 + e^exponent)."""
    return x / (1.0 + exp(exponent))


@njit(inline="always")
def silu_of(x):
    return over_one_plus_exp(x, 0.0 - x)


@njit(inline="always")
def gelu_of(x):
    """x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))."""
    cubic = fma(x * x, splat(f32x16, 0.044715), splat(f32x16, 1.0))
    return over_one_plus_exp(x, cubic * x * -1.5957691216057308)


of_t = polynomial(
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418,
    0.37409196, 1.00002368, -1.26551223,
)  # fmt: skip


@njit(inline="always")
def gelu_erf_of(x):
    """max(x, 0) - |x| erfc(|x| / sqrt(2)) / 2, erfc as in Numerical Recipes (6.2).

    Infinity passes as the largest number would; minus infinity becomes NaN.
    """
    size = maximum(0.0 - x, minimum(splat(f32x16, LARGEST), x))
    one = splat(f32x16, 1.0)
    t = one / fma(size, splat(f32x16, 0.35355339059327373), one)
    exponent = fma(x * -0.5, x, of_t(t))
    return maximum(x, zero(f32x16)) - size * (0.5 * t * exp(exponent))


silu, gelu, gelu_erf = map(each(SIGNATURE), (silu_of, gelu_of, gelu_erf_of))


@njit(inline="always")
def opened(x):
    """max(x, 0), but NaN stays NaN."""
    return maximum(zero(f32x16), x)


relu = each(SIGNATURE)(opened)


@each(SIGNATURE)
def squared_relu(x):
    return opened(x) * opened(x)


of_square = polynomial(*(2.0 / n for n in (15, 13, 11, 9, 7, 5, 3)))


@njit(inline="always")
def log1p_of(e):
    """log(1 + e) for 0 <= e <= 1: 2 atanh(z), z = e / (2 + e) <= 1/3, by its series, whose first
    omitted term is below 2^-28."""
    z = e / (e + 2.0)
    square = z * z
    return fma(of_square(square) * square, z, z + z)


@each(SIGNATURE)
def softplus(x):
    """NaN stays NaN."""
    return maximum(zero(f32x16), x) + log1p_of(exp(0.0 - fabs(x)))


@each(SIGNATURE)
def sigmoid(x):
    return over_one_plus_exp(splat(f32x16, 1.0), 0.0 - x)
