"""rotation, rope_norm and rope_neox on the CPU: tokens are split among threads.

Eight pairs at a time (rope_norm, whose pairs are neighbours) or sixteen (rope_neox); each product
and sum is rounded separately, so that the vector loop and the remainder of a head are the same
formula.
"""

import math

from numba import njit

from kernels.cpu.isa.simd import add, f32x16, lanewise, load, mul, shuffle, store, sub
from kernels.cpu.isa.sweep import each_row
from reference.rope import OPS

ROTATION, NORM, NEOX = (op.signature for op in OPS)


@each_row(ROTATION)
def rotation(t, positions, frequencies, magnitude, temperature, length, out):
    tuned = magnitude * (1 + temperature * math.log1p(positions[t] // length))
    for i in range(len(frequencies)):
        angle = positions[t] * frequencies[i]
        out[t, i, 0] = tuned * math.cos(angle)
        out[t, i, 1] = tuned * math.sin(angle)


@lanewise
def partners(builder, kind, v):
    """Swap the lanes of each pair (0, 1), (2, 3), ..."""
    return shuffle(builder, v, v, [i ^ 1 for i in range(kind.lanes)])


@lanewise
def cosines(builder, kind, v):
    """Of pairs (cos, sin): (cos, cos)."""
    return shuffle(builder, v, v, [i & ~1 for i in range(kind.lanes)])


@lanewise
def sines(builder, kind, v):
    """Of pairs (cos, sin): (-sin, sin)."""
    lanes = [i + kind.lanes if i & 1 else i + 1 for i in range(kind.lanes)]
    return shuffle(builder, builder.fneg(v), v, lanes)


@lanewise
def evens(builder, kind, a, b):
    """Lanes 0, 2, 4, ... of a and then of b."""
    return shuffle(builder, a, b, range(0, 2 * kind.lanes, 2))


@njit(inline="always")
def turn_pair(head, turned, pair, first, second):
    """Rotate one pair, elements `first` and `second` of a head, by pair = (cos, sin)."""
    a, b = head[first], head[second]
    turned[first] = a * pair[0] - b * pair[1]
    turned[second] = a * pair[1] + b * pair[0]


@njit(inline="always")
def copy_rest(head, turned, begin):
    for i in range(begin, len(head)):
        turned[i] = head[i]


@each_row(NORM)
def rope_norm(t, x, rotation, out):
    """Pair i is (2 i, 2 i + 1)."""
    heads, pairs = x.shape[1], rotation.shape[1]
    whole = pairs // 8 * 8
    angles = rotation[t]
    for h in range(heads):
        head, turned = x[t, h], out[t, h]
        for i in range(0, 2 * whole, 16):
            v, angle = load(f32x16, head, i), load(f32x16, angles, i)
            straight, across = mul(v, cosines(angle)), mul(partners(v), sines(angle))
            store(turned, i, add(straight, across))
        for i in range(whole, pairs):
            turn_pair(head, turned, angles[i], 2 * i, 2 * i + 1)
        copy_rest(head, turned, 2 * pairs)


@each_row(NEOX)
def rope_neox(t, x, rotation, out):
    """Pair i is (i, i + pairs)."""
    heads, pairs = x.shape[1], rotation.shape[1]
    whole = pairs // 16 * 16
    angles = rotation[t]
    for h in range(heads):
        head, turned = x[t, h], out[t, h]
        for i in range(0, whole, 16):
            low, high = load(f32x16, angles, 2 * i), load(f32x16, angles, 2 * i + 16)
            cos, sin = evens(low, high), evens(partners(low), partners(high))
            a, b = load(f32x16, head, i), load(f32x16, head, i + pairs)
            store(turned, i, sub(mul(a, cos), mul(b, sin)))
            store(turned, i + pairs, add(mul(a, sin), mul(b, cos)))
        for i in range(whole, pairs):
            turn_pair(head, turned, angles[i], i, i + pairs)
        copy_rest(head, turned, 2 * pairs)
