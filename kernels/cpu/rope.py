"""rotation, rope_norm and rope_neox on the CPU: tokens are shared among threads.

Eight pairs at a time (rope_norm, whose pairs are neighbours) or sixteen (rope_neox); each product
and sum is rounded alone, so that vectors and what is left of a head are the same formula.
"""

import math

from llvmlite import ir
from numba import njit
from numba.extending import intrinsic

from kernels.cpu.isa.simd import I32, add, f32x16, load, mul, store, sub
from kernels.cpu.runtime.share import arguments, part, share
from reference.rope import OPS

ROTATION, NORM, NEOX = (op.signature for op in OPS)


@share(ROTATION)
def rotation(block, thread, n_threads):
    positions, frequencies, magnitude, out = arguments(block, ROTATION)
    first, last = part(len(positions), thread, n_threads)
    for t in range(first, last):
        for i in range(len(frequencies)):
            angle = positions[t] * frequencies[i]
            out[t, i, 0] = magnitude * math.cos(angle)
            out[t, i, 1] = magnitude * math.sin(angle)


@intrinsic
def partners(typing, v):
    """The lanes of each pair (0, 1), (2, 3), ... exchanged."""

    def codegen(context, builder, signature, values):
        lanes = ir.Constant(ir.VectorType(I32, v.lanes), [i ^ 1 for i in range(v.lanes)])
        return builder.shuffle_vector(values[0], values[0], lanes)

    return v(v), codegen


@intrinsic
def cosines(typing, v):
    """Of pairs (cos, sin): (cos, cos)."""

    def codegen(context, builder, signature, values):
        lanes = ir.Constant(ir.VectorType(I32, v.lanes), [i & ~1 for i in range(v.lanes)])
        return builder.shuffle_vector(values[0], values[0], lanes)

    return v(v), codegen


@intrinsic
def sines(typing, v):
    """Of pairs (cos, sin): (-sin, sin)."""

    def codegen(context, builder, signature, values):
        lanes = [i + v.lanes if i & 1 else i + 1 for i in range(v.lanes)]
        mask = ir.Constant(ir.VectorType(I32, v.lanes), lanes)
        return builder.shuffle_vector(builder.fneg(values[0]), values[0], mask)

    return v(v), codegen


@intrinsic
def evens(typing, a, b):
    """Lanes 0, 2, 4, ... of a and then of b."""

    def codegen(context, builder, signature, values):
        mask = ir.Constant(ir.VectorType(I32, a.lanes), list(range(0, 2 * a.lanes, 2)))
        return builder.shuffle_vector(*values, mask)

    return a(a, a), codegen


@njit(inline="always")
def turn_pair(head, turned, pair, first, second):
    """One pair, at elements `first` and `second` of a head, by pair = (cos, sin)."""
    a, b = head[first], head[second]
    turned[first] = a * pair[0] - b * pair[1]
    turned[second] = a * pair[1] + b * pair[0]


@njit(inline="always")
def copy_rest(head, turned, begin):
    for i in range(begin, len(head)):
        turned[i] = head[i]


@share(NORM)
def rope_norm(block, thread, n_threads):
    """Pair i is (2 i, 2 i + 1)."""
    x, rotation, out = arguments(block, NORM)
    tokens, heads, _ = x.shape
    pairs = rotation.shape[1]
    whole = pairs // 8 * 8
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
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


@share(NEOX)
def rope_neox(block, thread, n_threads):
    """Pair i is (i, i + pairs)."""
    x, rotation, out = arguments(block, NEOX)
    tokens, heads, _ = x.shape
    pairs = rotation.shape[1]
    whole = pairs // 16 * 16
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
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
