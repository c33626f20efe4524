"""Dot products of two parts packed in the 16-bit halves of a word, where they fit.

Where the same execution units do dots and integer multiplications (Zen 4), multiplying a part's
dots by its integer scale costs as much as four of its bytes. Two parts' dots that fit are
multiplied by their pair of scales in one instruction, as totals are by mins. The second part's dots
are computed first and moved to the upper half, to which the lower half must not carry: an offset of
2^15 keeps the first part's from being negative.

Whether they fit follows from the activations. With weights from -a to b, and with P the sum of a
part's positive activations and N that of the magnitudes of its negative ones, its dots are between
-(a P + b N) and b P + a N. Integer sums are exact either way, so no bit depends on it.
"""

from typing import Any

from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.formats.layouts import BLOCK, Layout
from kernels.cpu.isa.simd import (
    I32,
    broadcast,
    constant,
    convert,
    dot_pairs,
    f32x16,
    fma,
    i8x64,
    i16x32,
    i32x16,
    lanewise,
    load_first,
    max_lanes,
    maximum,
    mul,
    splat,
    zero,
)
from kernels.cpu.isa.simd_x86 import dot4
from kernels.cpu.runtime.closures import inner

HALF = 1 << 15
LARGEST = 128  # of an activation's byte


def halves_fit(layout: Layout) -> bool:
    """Whether a part's dots fit if its activations have half the largest magnitude and add up to
    zero: a superblock's activations hardly ever all have the largest one, or one sign."""
    width = BLOCK // layout.parts
    return layout.integer_scales and layout.widest * width * LARGEST // 2 <= 2 * HALF


@lanewise
def magnitude(builder, kind, v):
    """|v|, of signed integers to unsigned ones."""
    negative = builder.icmp_signed("<", v, constant(kind.ir, 0))
    return builder.select(negative, builder.neg(v), v)


@intrinsic
def half_of(typing, pairs, half):
    """The lower halves of pairs of i16, or with 1 the upper ones, as int32."""

    def codegen(context, builder, signature, values):
        words = builder.bitcast(values[0], i32x16.ir)
        up = builder.sub(I32(16), builder.shl(builder.trunc(values[1], I32), I32(4)))
        raised_ = builder.shl(words, broadcast(builder, i32x16, up))
        return builder.ashr(raised_, constant(i32x16.ir, 16))

    return i32x16(pairs, types.intp), codegen


@intrinsic
def raised(typing, dots, beginning):
    """Words with dots[t] in the upper half and beginning[t] in the lower, plus the offset 2^15."""

    def codegen(context, builder, signature, values):
        tile, begins = values
        for t in range(dots.count):
            begin = builder.extract_value(begins, t)
            begin = builder.add(begin, constant(begin.type, HALF))
            upper = builder.shl(builder.extract_value(tile, t), constant(begin.type, 16))
            tile = builder.insert_value(tile, builder.add(upper, begin), t)
        return tile

    return dots(dots, dots), codegen


@intrinsic
def add_halves(typing, totals, words, integers):
    """The tuple of totals[t] plus the products of both halves of words[t] with the pairs of
    `integers`."""
    function = typing.resolve_value_type(dot_pairs)
    call = function.get_call_type(typing, (totals.dtype, i16x32, i16x32), {})

    def codegen(context, builder, signature, values):
        compiled = context.get_function(function, call)
        tile, halves, pairs = values
        for t in range(totals.count):
            word = builder.extract_value(halves, t)
            word = builder.bitcast(builder.xor(word, constant(word.type, HALF)), pairs.type)
            total = compiled(builder, [builder.extract_value(tile, t), word, pairs])
            tile = builder.insert_value(tile, total, t)
        return tile

    return totals(totals, words, i16x32), codegen


def judging(layout: Layout, size: int, words: int, knob: int) -> Any:
    """(q, tiles, deep, tuning, fits): for each of so many tiles of `size` tokens, and each unit of
    a panel `deep` units deep, whether the dots of all its parts fit, if knob number `knob` allows
    it."""
    parts, widest = layout.blocks * layout.parts, float(layout.widest)
    skew, limit = abs(widest - 2 * layout.zero_point), 2.0 * (HALF - 1)
    always = (widest + skew) * BLOCK // layout.parts * LARGEST <= limit
    words //= layout.parts

    @njit(inline="always")
    def largest(q, at):
        """Twice the largest magnitude that a part's dots may have."""
        most = zero(f32x16)
        for p in range(parts):
            magnitudes, total = zero(i32x16), zero(i32x16)
            for w in range(words):
                bytes_ = load_first(i8x64, q, at + (p * words + w) * size, 4 * size)
                magnitudes = dot4(magnitudes, magnitude(bytes_), splat(i8x64, 1))
                total = dot4(total, splat(i8x64, 1), bytes_)
            uneven = mul(splat(f32x16, skew), convert(f32x16, magnitude(total)))
            reach = fma(splat(f32x16, widest), convert(f32x16, magnitudes), uneven)
            most = maximum(most, reach)
        return max_lanes(most)

    @inner
    def judge(q, tiles, deep, tuning, fits):
        unit, allowed = parts * words * size, tuning[knob] != 0
        for k in range(tiles * deep):
            fits[k] = allowed and (always or largest(q, k * unit) <= limit)

    return judge


def never(layout: Layout) -> Any:
    """The same for formats whose dots do not fit."""

    @njit(inline="always")
    def judge(q, tiles, deep, tuning, fits):
        pass

    return judge
