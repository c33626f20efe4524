"""Groups of floats to and from E4M3 or E5M2, sixteen at a time by arithmetic on their bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.extending import intrinsic

from kernels.cpu.isa.simd import I32, convert, f32x16, i8x16, load, load_first, mul, splat
from kernels.cpu.isa.sweep import over_rows, store_some
from kernels.cpu.runtime.share import by_format
from kernels.cpu.schemes.integers import group_in
from reference.schemes.float8 import DEQUANTISE, E4M3, E5M2, QUANTISE, Float8

HALF_BIAS, HALF_FRACTION = 15, 10  # of float16, which holds every E4M3 and E5M2 number
BIAS, FRACTION = 127, 23  # of float32


def encoder(kind: Float8) -> Any:
    """An intrinsic: float32 lanes, within this kind's range, to codes."""
    cut, bias = FRACTION - kind.fraction, 1 - kind.lowest

    @intrinsic
    def codes(typing, v):
        result = v.of("i8")

        def codegen(context, builder, signature, values):
            words = ir.VectorType(I32, v.lanes)

            def constant(value: int) -> Any:
                return ir.Constant(words, [value] * v.lanes)

            bits = builder.bitcast(values[0], words)
            size = builder.and_(bits, constant(0x7FFFFFFF))
            # normal: round the fraction to nearest even, and rebias the exponent
            odd = builder.and_(builder.lshr(size, constant(cut)), constant(1))
            up = builder.add(builder.add(size, odd), constant((1 << (cut - 1)) - 1))
            normal = builder.lshr(up, constant(cut))
            normal = builder.sub(normal, constant((BIAS - bias) << kind.fraction))
            # subnormal: adding a number whose last bit is one step rounds the sum to whole steps
            step = ir.Constant(v.ir, [2.0 ** (FRACTION + kind.lowest - kind.fraction)] * v.lanes)
            small = builder.fadd(builder.bitcast(size, v.ir), step)
            small = builder.sub(builder.bitcast(small, words), builder.bitcast(step, words))
            least = constant((BIAS + kind.lowest) << FRACTION)
            code = builder.select(builder.icmp_signed("<", size, least), small, normal)
            sign = builder.and_(builder.lshr(bits, constant(24)), constant(0x80))
            return builder.trunc(builder.or_(code, sign), result.ir)

        return result(v), codegen

    return codes


def factor_of(kind: Float8) -> np.float32:
    """The factor for a decoder's numbers: the exponent's bias is float16's."""
    return np.float32(2.0 ** (HALF_BIAS - 1 + kind.lowest))


def decoder(kind: Float8) -> Any:
    """A compiled function: sixteen codes as float32 lanes, over factor_of(kind)."""
    shift, alone = HALF_FRACTION - kind.fraction, kind.nan == kind.last + 1

    @intrinsic
    def halves(typing, v):
        result = v.of("f16")

        def codegen(context, builder, signature, values):
            words = ir.VectorType(ir.IntType(16), v.lanes)

            def constant(value: int) -> Any:
                return ir.Constant(words, [value] * v.lanes)

            code = builder.sext(values[0], words)
            half = builder.shl(code, constant(shift))
            half = builder.and_(half, constant(0x8000 | 0x7F << shift))
            if alone:  # the one NaN would be a number of float16
                size = builder.and_(half, constant(0x7FFF))
                nan = builder.icmp_signed("==", size, constant(kind.nan << shift))
                half = builder.select(nan, constant(0x7E00), half)
            return builder.bitcast(half, result.ir)

        return result(v), codegen

    @njit(inline="always")
    def numbers(codes):
        return convert(f32x16, halves(codes))

    return numbers


@njit(inline="always")
def some_codes(codes, i, last):
    """Sixteen codes from i on, zero from `last` on."""
    return load(i8x16, codes, i) if i + 16 <= last else load_first(i8x16, codes, i, last - i)


def quantise_to(kind: Float8) -> Callable[..., None]:
    group, largest = group_in(encoder(kind)), np.float32(kind.largest)

    def quantise(g, x, q, scale):
        scale[g] = group(x[g], q[g], largest)

    return over_rows(QUANTISE, quantise)


def dequantise_from(kind: Float8) -> Callable[..., None]:
    numbers, factor = decoder(kind), factor_of(kind)

    def dequantise(g, q, scale, out):
        size, steps = q.shape[1], splat(f32x16, scale[g])
        for i in range(0, size, 16):
            values = mul(numbers(some_codes(q[g], i, size)), splat(f32x16, factor))
            store_some(out[g], i, size, mul(values, steps))

    return over_rows(DEQUANTISE, dequantise)


KINDS = {"e4m3": E4M3, "e5m2": E5M2}
QUANTISE_SHARES = by_format(quantise_to, QUANTISE, KINDS)
DEQUANTISE_SHARES = by_format(dequantise_from, DEQUANTISE, KINDS)
