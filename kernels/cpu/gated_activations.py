"""Gated activations on the CPU: tokens are shared among threads."""

import math

import numpy as np
from numba import njit

from kernels.cpu.activations import gelu_of, over_one_plus_exp, silu_of
from kernels.cpu.isa.simd import add, f32x16, maximum, minimum, mul, splat, zero
from kernels.cpu.isa.sweep import load_some, own_elements, store_some
from kernels.cpu.runtime.share import arguments, share
from reference.gated_activations import OPS

SIGNATURE, CLAMPED = OPS[0].signature, OPS[-1].signature


@share(SIGNATURE)
def swiglu(block, thread, n_threads):
    gate, up, out = arguments(block, SIGNATURE)
    first, last = own_elements(gate, thread, n_threads)
    for i in range(first, last, 16):
        activated = silu_of(load_some(gate, i, last))
        store_some(out, i, last, mul(activated, load_some(up, i, last)))


@share(SIGNATURE)
def swiglu_scalar(block, thread, n_threads):
    """The fallback, in plain loops and float64."""
    gate, up, out = arguments(block, SIGNATURE)
    gates, ups, target = gate.ravel(), up.ravel(), out.ravel()
    first, last = own_elements(gate, thread, n_threads)
    for i in range(first, last):
        value = float(gates[i])
        target[i] = value / (1.0 + math.exp(-value)) * ups[i]


@share(SIGNATURE)
def geglu(block, thread, n_threads):
    gate, up, out = arguments(block, SIGNATURE)
    first, last = own_elements(gate, thread, n_threads)
    for i in range(first, last, 16):
        activated = gelu_of(load_some(gate, i, last))
        store_some(out, i, last, mul(activated, load_some(up, i, last)))


@njit(inline="always")
def opened(x):
    """relu, of a vector; NaN stays NaN."""
    return maximum(zero(f32x16), x)


@share(SIGNATURE)
def reglu(block, thread, n_threads):
    gate, up, out = arguments(block, SIGNATURE)
    first, last = own_elements(gate, thread, n_threads)
    for i in range(first, last, 16):
        store_some(out, i, last, mul(opened(load_some(gate, i, last)), load_some(up, i, last)))


@share(SIGNATURE)
def squared_reglu(block, thread, n_threads):
    gate, up, out = arguments(block, SIGNATURE)
    first, last = own_elements(gate, thread, n_threads)
    for i in range(first, last, 16):
        active = opened(load_some(gate, i, last))
        store_some(out, i, last, mul(mul(active, active), load_some(up, i, last)))


@share(SIGNATURE)
def drelu(block, thread, n_threads):
    gate, up, out = arguments(block, SIGNATURE)
    first, last = own_elements(gate, thread, n_threads)
    for i in range(first, last, 16):
        active = opened(load_some(up, i, last))
        store_some(out, i, last, mul(opened(load_some(gate, i, last)), active))


@share(CLAMPED)
def swiglu_oai(block, thread, n_threads):
    """NaN stays NaN."""
    gate, up, alpha, limit, out = arguments(block, CLAMPED)
    first, last = own_elements(gate, thread, n_threads)
    factor, one = splat(f32x16, -np.float32(alpha)), splat(f32x16, 1.0)
    most, least = splat(f32x16, np.float32(limit)), splat(f32x16, -np.float32(limit))
    for i in range(first, last, 16):
        g = minimum(most, load_some(gate, i, last))
        u = maximum(least, minimum(most, load_some(up, i, last)))
        store_some(out, i, last, mul(over_one_plus_exp(g, mul(factor, g)), add(u, one)))
