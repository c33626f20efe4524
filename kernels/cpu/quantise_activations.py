"""quantise_activations on the CPU: tokens are shared among threads, a block is two vectors."""

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.isa.simd import (
    I32,
    Vector,
    call_llvm,
    constant,
    convert,
    f32x16,
    i8x16,
    load,
    mul,
    splat,
    store,
    suffix,
)
from kernels.cpu.runtime.share import arguments, part, share
from reference.quantise_activations import BLOCK, OP

SIGNATURE = OP.signature
F32 = ir.FloatType()


def larger_words(builder: Any, kind: Vector, a: Any, b: Any) -> Any:
    """The words of the larger |lane| of two vectors; of infinity or NaN if one is either.

    Without their signs floats stand in the order of their bits, infinity above all numbers and NaN
    above infinity.
    """
    words = kind.of("i32").ir
    x, y = (builder.and_(builder.bitcast(v, words), constant(words, 0x7FFFFFFF)) for v in (a, b))
    return builder.select(builder.icmp_signed(">", x, y), x, y)


@intrinsic
def largest_magnitude(typing, a, b):
    """The largest |lane| of two vectors; infinity or NaN if one is either."""

    def codegen(context, builder, signature, values):
        larger = larger_words(builder, a, *values)
        name = f"llvm.vector.reduce.smax.v{a.lanes}i32"
        return builder.bitcast(call_llvm(builder, name, I32, [larger]), F32)

    return types.float32(a, a), codegen


@intrinsic
def round_away(typing, v):
    """The nearest whole numbers as int32 lanes, halves away from zero."""

    def codegen(context, builder, signature, values):
        half = [constant(v.ir, 0.5), values[0]]
        half = call_llvm(builder, f"llvm.copysign.{suffix(v)}", v.ir, half)
        return builder.fptosi(builder.fadd(values[0], half), v.of("i32").ir)

    return v.of("i32")(v), codegen


@intrinsic
def sum_both(typing, a, b):
    """The sum of all int32 lanes of two vectors."""

    def codegen(context, builder, signature, values):
        name = f"llvm.vector.reduce.add.v{a.lanes}i32"
        return call_llvm(builder, name, I32, [builder.add(*values)])

    return types.int32(a, a), codegen


@njit(inline="always")
def quantise_block(values, quants, begin):
    """One block from flat element `begin` on; its scale and the sum of its quants."""
    low, high = load(f32x16, values, begin), load(f32x16, values, begin + 16)
    largest = largest_magnitude(low, high)
    if not largest < np.inf:
        for j in range(BLOCK):
            quants[begin + j] = 0
        return np.float32(np.nan), np.int32(0)
    d = largest / np.float32(127)
    inverse = np.float32(1) / d if d > 0 else np.float32(0)
    if math.isinf(inverse):
        inverse = np.float32(0)
    factor = splat(f32x16, inverse)
    q_low, q_high = round_away(mul(low, factor)), round_away(mul(high, factor))
    store(quants, begin, convert(i8x16, q_low))
    store(quants, begin + 16, convert(i8x16, q_high))
    return d, sum_both(q_low, q_high)


@share(SIGNATURE)
def generic(block, thread, n_threads):
    x, q, scale, total = arguments(block, SIGNATURE)
    tokens, blocks = scale.shape
    values, quants, scales, totals = x.ravel(), q.ravel(), scale.ravel(), total.ravel()
    first, last = part(tokens, thread, n_threads)
    for b in range(first * blocks, last * blocks):
        scales[b], totals[b] = quantise_block(values, quants, b * BLOCK)
