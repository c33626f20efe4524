"""Gated activations on the CPU: tokens are shared among threads."""

import math

from numba import njit

from kernels.cpu.activations import gelu_of, silu_of
from kernels.cpu.share import arguments, share
from kernels.cpu.simd import f32x16, maximum, mul, zero
from kernels.cpu.sweep import load_some, own_elements, store_some
from reference.gated_activations import OPS

SIGNATURE = OPS[0].signature


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
