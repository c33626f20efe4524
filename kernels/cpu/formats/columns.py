"""Thirty-two columns of a weight's row, decoded to float32."""

from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.decoding import TAGS, element, six_bit_min, six_bit_part
from kernels.cpu.isa.bits import half_at
from kernels.cpu.isa.simd import (
    bf16x16,
    convert,
    f16x16,
    f32x16,
    fma,
    high_nibbles,
    i8x16,
    load,
    low_nibbles,
    mul,
    splat,
    splat_half,
)
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.isa.simd_x86 import picked
from kernels.cpu.runtime.closures import inner
from reference.formats import FORMATS

COLUMNS = 32
CODES = np.arange(16, dtype=np.float32)  # of four bits
LOWERED = CODES - np.float32(8)


def decoded_floats(kind: Any) -> Any:
    step = kind.bits // 8

    @njit(inline="always")
    def decode(weight, start, c):
        at = start + c // 16 * step
        return convert(f32x16, load(kind, weight, at)), convert(
            f32x16, load(kind, weight, at + step)
        )

    return decode


@njit(inline="always")
def widened_first(weight, at):
    """The float16 at a byte in every lane."""
    return splat(f32x16, half_at(weight, at))


@njit(inline="always")
def spread_first(weight, at):
    """The same (F16C), without the false dependency of converting a lone float16 into a partly
    stale register."""
    return splat_half(f32x16, weight, at)


def q8_0(half: Any) -> Any:
    @njit(inline="always")
    def decode(weight, start, c):
        at = start + c // 32 * 34
        d = half(weight, at)
        low, high = load(i8x16, weight, at + 2), load(i8x16, weight, at + 18)
        return mul(d, convert(f32x16, low)), mul(d, convert(f32x16, high))

    return decode


def q4_0(half: Any) -> Any:
    @njit(inline="always")
    def decode(weight, start, c):
        at = start + c // 32 * 18
        d = half(weight, at)
        less = mul(d, splat(f32x16, np.float32(-8)))
        codes = load(i8x16, weight, at + 2)
        low, high = convert(f32x16, low_nibbles(codes)), convert(f32x16, high_nibbles(codes))
        return fma(d, low, less), fma(d, high, less)  # exact: d has 11 bits, a code 4

    return decode


@njit(inline="always")
def by_arithmetic(d, m, codes, shift):
    code = high_nibbles(codes) if shift else low_nibbles(codes)
    return fma(d, convert(f32x16, code), m)  # d has 17 bits, a code 4: the product is exact


@njit(inline="always")
def by_table(d, m, codes, shift):
    """A product and a sum as one lookup: LLVM would look up each operand."""
    return picked(fma(d, load(f32x16, CODES, 0), m), codes, shift)


def q4_k(half: Any, number: Any) -> Any:
    """d * code + m by number(d, m, codes, shift), with codes of four bits from `shift`."""

    @njit(inline="always")
    def decode(weight, start, c):
        at, j = start + c // 256 * 144, c % 256
        d = mul(half(weight, at), splat(f32x16, np.float32(six_bit_part(weight, at, j))))
        m = mul(half(weight, at + 2), splat(f32x16, np.float32(-six_bit_min(weight, at, j))))
        codes, shift = at + 16 + j // 64 * 32, j % 64 // 32 * 4
        low, high = load(i8x16, weight, codes), load(i8x16, weight, codes + 16)
        return number(d, m, low, shift), number(d, m, high, shift)

    return decode


def decoded_elements(format: str) -> Any:
    """Any format, element by element."""
    tag, elements, size = TAGS[format], FORMATS[format].block, FORMATS[format].block_bytes

    @inner
    def decode(weight, start, c):
        values = stack(np.float32, COLUMNS)
        row = weight[start + c // elements * size :]
        for i in range(COLUMNS):
            values[i] = element(tag, row, c % elements + i)
        return load(f32x16, values, 0), load(f32x16, values, 16)

    return decode


@njit(inline="always")
def tabled_q4_0(weight, start, c):
    at = start + c // 32 * 18
    codes = load(i8x16, weight, at + 2)
    table = mul(splat_half(f32x16, weight, at), load(f32x16, LOWERED, 0))
    return picked(table, codes, 0), picked(table, codes, 4)


DECODED = {
    "F32": decoded_floats(f32x16),
    "F16": decoded_floats(f16x16),
    "BF16": decoded_floats(bf16x16),
    "Q8_0": q8_0(widened_first),
    "Q4_0": q4_0(widened_first),
    "Q4_K": q4_k(widened_first, by_arithmetic),
}
SPREAD = DECODED | {  # AVX2
    "Q8_0": q8_0(spread_first),
    "Q4_0": q4_0(spread_first),
    "Q4_K": q4_k(spread_first, by_arithmetic),
}
# AVX-512: four-bit codes select among all sixteen values.
TABLED = {"Q4_0": tabled_q4_0, "Q4_K": q4_k(widened_first, by_table)}
