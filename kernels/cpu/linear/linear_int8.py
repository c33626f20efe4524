"""linear for block formats by multiplying bytes, `avx512_vnni`, or pairs of 16 bits, `generic`. The
loops are linear_blocks.py's."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.formats.layouts import LAYOUTS, WORD_ROWS, Layout
from kernels.cpu.isa.simd import (
    Vector,
    address_of,
    constant,
    dot_pairs,
    even_bytes,
    odd_bytes,
)
from kernels.cpu.isa.simd_x86 import dot4, in_order, looked_up
from kernels.cpu.isa.tiles import outer, outer_of_two
from kernels.cpu.linear import linear_pairs
from kernels.cpu.linear.linear import KNOBS, Blocking
from kernels.cpu.linear.linear_blocks import Microkernel, shares
from kernels.cpu.linear.linear_halves import halves_fit
from kernels.cpu.runtime.closures import inlined
from kernels.knob import Knob

FITTING = 8  # tokens of a tile: registers have room for its dots and sums and a block's codes
four_bytes, two_halves = outer(dot4), outer(dot_pairs)


@njit(inline="always")
def even_halves(word):
    """Bytes 0 and 2 of a word of activations as two int16."""
    return (np.int8(word) & 0xFFFF) | (np.int8(word >> 16) << 16)


@njit(inline="always")
def odd_halves(word):
    """Bytes 1 and 3 of a word of activations as two int16."""
    return (np.int8(word >> 8) & 0xFFFF) | (np.int8(word >> 24) << 16)


@inlined
def by_pairs(dots, w, q, at, size):
    dots = two_halves(dots, even_bytes(w), q, at)
    return two_halves(dots, odd_bytes(w), q, at + size)


@inlined
def by_bytes(dots, w, q, at, size):
    return four_bytes(dots, w, q, at)


@njit(inline="always")
def pack_word(panel, k, t, size, four):
    panel[k * size + t] = four


@njit(inline="always")
def pack_halves(panel, k, t, size, four):
    panel[2 * k * size + t] = even_halves(four)
    panel[(2 * k + 1) * size + t] = odd_halves(four)


@intrinsic
def before_half(typing, dots, at):
    """The dots of a tile and the block's place, for its second half: LLVM would load codes of both
    halves at once, and then finish the dots of some tokens before others' begin, whose products
    wait for each other. A second time the codes come from the first cache."""
    result = types.Tuple([dots, at])

    def codegen(context, builder, signature, values):
        tile, at = values
        if dots.count <= FITTING:
            return context.make_tuple(builder, result, values)
        vectors = [builder.extract_value(tile, t) for t in range(dots.count)]
        *vectors, at = in_order(builder, [*vectors, at])
        for t, vector in enumerate(vectors):
            tile = builder.insert_value(tile, vector, t)
        return context.make_tuple(builder, result, [tile, at])

    return result(dots, at), codegen


@njit(inline="always")
def as_they_are(dots, at):
    return dots, at


@dataclass(frozen=True, slots=True)
class ByteProducts(Microkernel):
    """Dots by byte multiplication: `four` is (dots, weights, panel, offset, size) -> dots for four
    bytes a row. Without `tables`, codes are stored as the values that they name. `four_of_two` is
    `four` for two groups of rows at once, `dot` is for filling panels
    (Microkernel.dot_of_bytes), and `between` is what dots go through between a block's halves."""

    four: Any
    tables: bool = True
    four_of_two: Any = None
    dot: Any = None
    between: Any = as_they_are

    def layout(self, format: str) -> Layout:
        return LAYOUTS[format] if self.tables else LAYOUTS[format].spread()

    def dots(self, layout: Layout) -> tuple[Any, ...]:
        four, words, lanes = self.four, self.words, self.lanes

        def adding(codes: Any, begin: int) -> Any:
            @njit(inline="always")
            def add(dots, weight, at, q, where, size):
                a, b, c, d = codes(weight, at)
                dots = four(dots, a, q, where + words * (begin + 0) * size, size)
                dots = four(dots, b, q, where + words * (begin + 1) * size, size)
                dots = four(dots, c, q, where + words * (begin + 2) * size, size)
                return four(dots, d, q, where + words * (begin + 3) * size, size)

            return add

        first, second = map(adding, codes_of(layout, lanes), (0, 4))
        unpacks = layout.planes != (8,)
        between = self.between if unpacks else as_they_are

        @njit(inline="always")
        def whole(dots, weight, at, q, where, size):
            dots, at = between(first(dots, weight, at, q, where, size), at)
            return second(dots, weight, at, q, where, size)

        return (first, second) if layout.parts == 2 else (whole,)

    def dot_of_bytes(self) -> Any | None:
        return self.dot

    def pair(self, layout: Layout) -> tuple[Any, Any] | None:
        # Codes of several planes are expensive to assemble; with two parts per block a tile of one
        # group runs out of registers, and packed halves are for pairs only.
        costly = layout.parts == 2 or len(layout.planes) > 1 or halves_fit(layout)
        if self.four_of_two is None or layout.blocks == 1 or not costly:
            return None
        return codes_of(layout, self.lanes), self.four_of_two


def code_of(builder: Any, layout: Layout, word: Callable[[int], Any], c: int) -> Any:
    """The codes of a block's word c, from its planes, whose words word(number) loads."""
    code, first, low = None, 0, 0
    for bits in layout.planes:
        plane = word(first + c % bits)
        kind = plane.type
        plane = builder.lshr(plane, constant(kind, bits * (c // bits)))
        plane = builder.and_(plane, constant(kind, (1 << bits) - 1))
        plane = builder.shl(plane, constant(kind, low))
        code = builder.or_(code, plane) if code else plane
        first, low = first + bits, low + bits
    return code


def codes_of(layout: Layout, lanes: int) -> tuple[Any, Any]:
    """`four_codes` for both halves of a block."""
    return four_codes(layout, lanes, 0), four_codes(layout, lanes, 1)


def four_codes(layout: Layout, lanes: int, half: int) -> Any:
    """An intrinsic of (weight, at): words 4 * half to 4 * half + 3 of a block, as vectors of codes
    or of the values that they name."""
    kind = Vector("i8", 4 * lanes)

    @intrinsic
    def codes(typing, weight, at):
        result = types.UniTuple(kind, 4)

        def codegen(context, builder, signature, values):
            def word(number: int) -> Any:
                where = builder.add(values[1], values[1].type(number * WORD_ROWS))
                pointer = address_of(context, builder, weight, (values[0], where), kind.ir)
                loaded = builder.load(pointer)
                loaded.align = 1
                return loaded

            vectors = []
            for c in range(4 * half, 4 * half + 4):
                code = code_of(builder, layout, word, c)
                if layout.table:
                    named = [value + layout.zero_point for value in layout.table]
                    code = looked_up(builder, code, named)
                vectors.append(code)
            return context.make_tuple(builder, result, vectors)

        return result(weight, types.intp), codegen

    return codes


NARROW, WIDE = Blocking((6, 4, 2, 1), 48, 64), Blocking((12, 8, 6, 5, 4, 2, 1), 48, 64)
GENERIC = ByteProducts(8, 2, pack_halves, NARROW, by_pairs, tables=False)
TWO = outer_of_two(dot4)
AVX512_VNNI = ByteProducts(
    16, 1, pack_word, WIDE, by_bytes, four_of_two=TWO, dot=dot4, between=before_half
)


GENERIC_SHARES = shares(GENERIC, "generic", LAYOUTS)
AVX512_VNNI_SHARES = shares(AVX512_VNNI, "avx512_vnni", LAYOUTS)
AVX512_VNNI_KNOBS: dict[str, tuple[Knob, ...]] = {
    f: linear_pairs.knobs_of(layout) if AVX512_VNNI.pair(layout) else KNOBS
    for f, layout in LAYOUTS.items()
}
