"""Gated activations on the CPU: tokens are split among threads."""

import math

import numpy as np

from kernels.cpu.activations import gelu_of, opened, over_one_plus_exp, silu_of
from kernels.cpu.isa.simd import f32x16, maximum, minimum, splat
from kernels.cpu.isa.sweep import each, own_elements
from kernels.cpu.runtime.share import arguments, share
from reference.gated_activations import OPS

SIGNATURE, CLAMPED = OPS[0].signature, OPS[-1].signature


@each(SIGNATURE)
def swiglu(gate, up):
    return silu_of(gate) * up


@share(SIGNATURE)
def swiglu_scalar(args, thread, n_threads):
    """The fallback, in plain loops and float64."""
    gate, up, out = arguments(args, SIGNATURE)
    gates, ups, target = gate.reshape(gate.size), up.reshape(up.size), out.reshape(out.size)
    first, last = own_elements(gate, thread, n_threads)
    for i in range(first, last):
        value = float(gates[i])
        target[i] = value / (1.0 + math.exp(-value)) * ups[i]


@each(SIGNATURE)
def geglu(gate, up):
    return gelu_of(gate) * up


@each(SIGNATURE)
def reglu(gate, up):
    return opened(gate) * up


@each(SIGNATURE)
def squared_reglu(gate, up):
    return opened(gate) * opened(gate) * up


@each(SIGNATURE)
def drelu(gate, up):
    return opened(gate) * opened(up)


@each(CLAMPED)
def swiglu_oai(gate, up, alpha, limit):
    """NaN stays NaN."""
    most, least = splat(f32x16, np.float32(limit)), splat(f32x16, -np.float32(limit))
    g, u = minimum(most, gate), maximum(least, minimum(most, up))
    return over_one_plus_exp(g, -np.float32(alpha) * g) * (u + 1.0)
