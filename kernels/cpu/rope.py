"""rotation, rope_norm and rope_neox on the CPU: tokens (and heads) are shared among threads."""

import math

from numba import njit

from kernels.cpu.share import arguments, part, share
from reference.rope import OPS

ROTATION, NORM, NEOX = (op.signature for op in OPS)


@share(ROTATION)
def rotation(block, thread, n_threads):
    positions, frequencies, magnitude, out = arguments(block, ROTATION)
    pairs = len(frequencies)
    first, last = part(len(positions) * pairs, thread, n_threads)
    for item in range(first, last):
        t, i = item // pairs, item % pairs
        angle = positions[t] * frequencies[i]
        out[t, i, 0] = magnitude * math.cos(angle)
        out[t, i, 1] = magnitude * math.sin(angle)


@njit(inline="always")
def turn(x, rotation, out, stride, partner, thread, n_threads):
    """Pair i of a head is (stride * i, stride * i + partner)."""
    tokens, heads, head_dim = x.shape
    pairs = rotation.shape[1]
    first, last = part(tokens * heads, thread, n_threads)
    for item in range(first, last):
        t, h = item // heads, item % heads
        for i in range(pairs):
            a, b = x[t, h, stride * i], x[t, h, stride * i + partner]
            cos, sin = rotation[t, i, 0], rotation[t, i, 1]
            out[t, h, stride * i] = a * cos - b * sin
            out[t, h, stride * i + partner] = a * sin + b * cos
        for i in range(2 * pairs, head_dim):
            out[t, h, i] = x[t, h, i]


@share(NORM)
def rope_norm(block, thread, n_threads):
    x, rotation, out = arguments(block, NORM)
    turn(x, rotation, out, 2, 1, thread, n_threads)


@share(NEOX)
def rope_neox(block, thread, n_threads):
    x, rotation, out = arguments(block, NEOX)
    turn(x, rotation, out, 1, rotation.shape[1], thread, n_threads)
