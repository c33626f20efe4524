"""quantise_activations and quantise_activations_256 on the CPU: tokens are split among threads, and
32 activations are two vectors."""

import math
from functools import partial
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
from kernels.cpu.linear.linear import named
from kernels.cpu.runtime.share import Share, arguments, part
from reference.quantise_activations import BLOCK, OP, SUPERBLOCK

SIGNATURE = OP.signature
F32 = ir.FloatType()


def larger_words(builder: Any, kind: Vector, a: Any, b: Any) -> Any:
    """The bits of the larger |lane| of two vectors; of infinity or NaN if one is either. Without
    their signs floats are ordered like their bits, infinity above all numbers and NaN above
    infinity."""
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
    """The nearest integers as int32 lanes, halves away from zero."""

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
def scale_of(largest):
    """A block's scale, and the factor for its activations; NaN where one is not finite."""
    if not largest < np.inf:
        return np.float32(np.nan), np.float32(0)
    d = largest / np.float32(127)
    inverse = np.float32(1) / d if d > 0 else np.float32(0)
    return d, np.float32(0) if math.isinf(inverse) else inverse


@njit(inline="always")
def largest_of_32(values, at):
    return largest_magnitude(load(f32x16, values, at), load(f32x16, values, at + 16))


def of_blocks(together: int) -> Any:
    """The share for blocks of so many activations."""

    @njit(inline="always")
    def largest_of(values, begin):
        largest = largest_of_32(values, begin)
        for at in range(begin + BLOCK, begin + together, BLOCK):
            if not largest < np.inf:
                break
            found = largest_of_32(values, at)
            largest = largest if found <= largest else found  # NaN too
        return largest

    @njit(inline="always")
    def quantise(values, quants, scales, totals, begin):
        """One block from flat element `begin` on."""
        scale, inverse = scale_of(largest_of(values, begin))
        factor = splat(f32x16, inverse)
        for at in range(begin, begin + together, BLOCK):
            scales[at // BLOCK] = scale
            if scale != scale:
                quants[at : at + BLOCK] = 0
                totals[at // BLOCK] = 0
                continue
            low = round_away(mul(load(f32x16, values, at), factor))
            high = round_away(mul(load(f32x16, values, at + 16), factor))
            store(quants, at, convert(i8x16, low))
            store(quants, at + 16, convert(i8x16, high))
            totals[at // BLOCK] = sum_both(low, high)

    def kernel(args, thread, n_threads):
        x, q, scale, total = arguments(args, SIGNATURE)
        values, quants = x.reshape(x.size), q.reshape(q.size)
        scales, totals = scale.reshape(scale.size), total.reshape(total.size)
        first, last = part(x.shape[0], thread, n_threads)
        for begin in range(first * x.shape[1], last * x.shape[1], together):
            quantise(values, quants, scales, totals, begin)

    return named(kernel, str(together))


SHARES = {
    "int8": Share(partial(of_blocks, BLOCK), SIGNATURE),
    "int8_256": Share(partial(of_blocks, SUPERBLOCK), SIGNATURE),
}
