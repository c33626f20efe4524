"""linear for block formats in AVX2, `avx2`: products are added in 16 bits while they surely fit.

vpmaddubsw adds two neighbours' products in int16, and widening that to int32 (vpmaddwd) costs as
much again. So products of several words are added first: with codes up to c and activations
within 128, a word gives at most 2 * 128 * c, and 4-bit codes of a whole block fit. What widens
them multiplies, too: by a part's integer scale, where it has one. Codes beyond 128 are signed:
|w| times an activation with w's sign.
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.formats.layouts import LAYOUTS, WORD_ROWS, Layout
from kernels.cpu.isa.simd import (
    I32,
    Vector,
    broadcast,
    constant,
    i8x32,
    i32x8,
    load,
    loading,
    shuffle,
)
from kernels.cpu.isa.simd_x86 import (
    dots_of_bytes,
    dots_of_halves,
    in_order,
    looked_up,
    with_sign_of,
)
from kernels.cpu.linear.linear import Blocking
from kernels.cpu.linear.linear_blocks import Microkernel, shares
from kernels.cpu.linear.linear_halves import HALF, LARGEST
from kernels.cpu.linear.linear_int8 import code_of, pack_word
from kernels.cpu.linear.linear_pairs import WORDS

ROWS = 8  # a lane each
MOST = HALF - 1  # of int16
I16 = ir.IntType(16)
i8x8, i16x16 = Vector("i8", ROWS), Vector("i16", 2 * ROWS)


def signed(layout: Layout) -> bool:
    """Whether codes are met as the signed values before their offset."""
    return layout.widest >= LARGEST


def words_together(layout: Layout) -> int:
    """How many words' products may be added in int16."""
    return max(1, MOST // (2 * LARGEST * layout.widest))


def _twice(builder: Any, wide: Any) -> Any:
    return shuffle(builder, wide, wide, [i // 2 for i in range(2 * ROWS)])


@intrinsic
def twice(typing, v):
    """Each signed byte of i8x8 as two equal int16."""

    def codegen(context, builder, signature, values):
        return _twice(builder, builder.sext(values[0], ir.VectorType(I16, ROWS)))

    return i16x16(v), codegen


@intrinsic
def low_nibbles_twice(typing, v):
    """The same of each byte's four low bits."""

    def codegen(context, builder, signature, values):
        low = builder.and_(values[0], constant(values[0].type, 15))
        return _twice(builder, builder.zext(low, ir.VectorType(I16, ROWS)))

    return i16x16(v), codegen


def factors_of(layout: Layout) -> Any:
    """(weight, at) -> the integers at byte `at` that multiply the dots of a part, as pairs."""
    narrow = low_nibbles_twice if layout.packed_scales else twice

    @njit(inline="always")
    def factors(weight, at):
        return narrow(load(i8x8, weight, at))

    return factors


def codes_of(builder: Any, layout: Layout, load_plane: Any, word: int) -> tuple[Any, Any]:
    """A word's codes as unsigned bytes, and the signed ones whose sign products take, or None."""
    code = code_of(builder, layout, load_plane, word)
    if not signed(layout):
        named = [value + layout.zero_point for value in layout.table]
        return (looked_up(builder, code, named) if named else code), None
    if layout.table:
        code = looked_up(builder, code, layout.table)
    else:
        code = builder.sub(code, constant(code.type, layout.zero_point))
    negative = builder.icmp_signed("<", code, ir.Constant(code.type, None))
    return builder.select(negative, builder.neg(code), code), code


def of_part(layout: Layout, part: int) -> Any:
    """An intrinsic of (totals, factors, weight, at, panel, where, size): totals plus a part's dots
    times the pairs of `factors`, or as they are where those are None."""
    count, together = WORDS // layout.parts, words_together(layout)
    words = range(part * count, (part + 1) * count)

    @intrinsic
    def add(typing, totals, factors, weight, at, panel, where, size):
        def codegen(context, builder, signature, values):
            tile, tokens = values[0], range(signature.args[0].count)
            loaded = loading(context, builder, signature, values)
            times = values[1]
            if isinstance(signature.args[1], types.NoneType):
                times = constant(i16x16.ir, 1)

            def plane(number: int) -> Any:
                return loaded(2, number * WORD_ROWS, i8x32.ir)

            sums = [builder.extract_value(tile, t) for t in tokens]
            for first in range(0, count, together):
                halves: list[Any] = []
                for word in words[first : first + together]:
                    sizes, sign = codes_of(builder, layout, plane, word)
                    dots = []
                    for t in tokens:
                        four = loaded(4, word * len(tokens) + t, I32)
                        four = builder.bitcast(broadcast(builder, i32x8, four), i8x32.ir)
                        four = with_sign_of(builder, four, sign) if sign else four
                        dots.append(dots_of_bytes(builder, sizes, four))
                    if halves:
                        dots = [builder.add(h, d) for h, d in zip(halves, dots, strict=True)]
                    halves = in_order(builder, dots) if together > 1 else dots
                dots = [dots_of_halves(builder, h, times) for h in halves]
                sums = [builder.add(s, d) for s, d in zip(sums, dots, strict=True)]
                sums = in_order(builder, sums) if together == 1 else sums
            for t, total in enumerate(sums):
                tile = builder.insert_value(tile, total, t)
            return tile

        signature = totals(totals, factors, weight, types.intp, panel, types.intp, types.intp)
        return signature, codegen

    return add


def unscaled(of_part: Any) -> Any:
    @njit(inline="always")
    def add(dots, weight, at, panel, where, size):
        return of_part(dots, None, weight, at, panel, where, size)

    return add


@dataclass(frozen=True, slots=True)
class Avx2(Microkernel):
    """Dots of unsigned codes or of signed values."""

    def zero_point_correction(self, layout: Layout) -> int:
        return 0 if signed(layout) else -layout.zero_point

    def dots(self, layout: Layout) -> tuple[Any, ...]:
        return tuple(unscaled(of_part(layout, part)) for part in range(layout.parts))

    def scaled_dots(self, layout: Layout) -> tuple[Any, tuple[Any, ...]] | None:
        if not layout.integer_scales:
            return None
        return factors_of(layout), tuple(of_part(layout, part) for part in range(layout.parts))


AVX2 = Avx2(ROWS, 1, pack_word, Blocking((6, 4, 2, 1), 48, 64))
SHARES = shares(AVX2, "avx2", LAYOUTS)
