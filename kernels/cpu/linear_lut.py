"""linear for block formats of two and four bits by looked up sums: `lut_avx2` and `lut_avx512`.

A code is its bits, so a dot is 2^i times the sum of those activations whose code has bit i, over i
(T-MAC, arXiv 2407.00088). The sixteen sums that a group of four activations can have are a table,
built once for all rows; the group's bits i of a row are a nibble that names one of them; and a byte
shuffle looks up as many as a vector has bytes. T-MAC rounds the sums to int8. Here they stay whole:
32 * high + low, a table of each. Eight low bytes add up to 248 at most, eight high ones to -128 to
120, so a block of 32 is added up in bytes, exactly. All else is as in linear_int8.py, and so are
the bits of the result.

Packed weights are as layouts.py says but for a block's planes, which are chunks of 64 bytes, one
step of lookups in each of its two nibbles, the lower first. Steps go through the groups in order:

- codes of four bits: a step is a group, [16 rows][4 bits];
- codes of two bits: a step is two groups, [2 halves of rows][2 groups][8 rows][2 bits].

The panel has for each pair of groups [tokens of the tile] the low bytes of both, then the high ones.
"""

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.layouts import WORD_ROWS, Layout
from kernels.cpu.linear import Blocking
from kernels.cpu.linear_int8 import Meeting, shares
from kernels.cpu.simd import I32, Vector, address_of, broadcast
from kernels.cpu.simd_x86 import dots_of_bytes, dots_of_halves, shuffled

FORMATS = "Q4_0", "Q2_K", "TQ1_0", "TQ2_0"
GROUPS = 8  # of four elements, in a block
PAIR = 16  # words of the panel: two groups' sums, in two bytes each
LOW_BITS = 5  # of a sum, in the table of low bytes

i8x16, i16x16 = Vector("i8", 16), Vector("i16", 16)


@intrinsic
def store_sums(typing, panel, at, four):
    """The sixteen sums of some of a word's four int8: sum n has byte j where bit j of n is set.

    Low bytes to panel[at:], high ones half a pair further, in words."""

    def codegen(context, builder, signature, values):
        sums = ir.Constant(i16x16.ir, None)
        for j in range(4):
            byte = builder.trunc(builder.lshr(values[2], I32(8 * j)), ir.IntType(8))
            one = broadcast(builder, i16x16, builder.sext(byte, ir.IntType(16)))
            mask = ir.Constant(i16x16.ir, [-(n >> j & 1) for n in range(16)])
            sums = builder.add(sums, builder.and_(one, mask))
        low = builder.and_(sums, ir.Constant(i16x16.ir, [(1 << LOW_BITS) - 1] * 16))
        high = builder.ashr(sums, ir.Constant(i16x16.ir, [LOW_BITS] * 16))
        for part, beyond in ((low, 0), (high, PAIR // 2)):
            where = builder.add(values[1], values[1].type(beyond))
            pointer = address_of(context, builder, signature.args[0], (values[0], where), i8x16.ir)
            builder.store(builder.trunc(part, i8x16.ir), pointer).align = 16
        return context.get_dummy_value()

    return types.void(panel, types.intp, types.int32), codegen


@njit(inline="always")
def lay_sums(panel, k, t, size, four):
    store_sums(panel, (k // 2 * size + t) * PAIR + k % 2 * (PAIR // 4), four)


def of_steps(bits: int, lanes: int, first: int, last: int) -> Any:
    """An intrinsic of (dots, weight, at, panel, where, size): dots with steps `first` to `last` of
    a block added."""
    together = 4 // bits  # groups of a step
    bytes_, halves = Vector("i8", 4 * lanes), Vector("i16", 2 * lanes)
    table = Vector("i8", 16 * together)

    def constant(vector: Vector, *values: int) -> Any:
        return ir.Constant(vector.ir, [*values] * (vector.lanes // len(values)))

    def in_lanes(builder: Any, low: Any, high: Any) -> Any:
        """The bytes' sums, times what their bit is worth, as an integer a row."""
        total = builder.add(
            dots_of_bytes(builder, low, constant(bytes_, 1, 2)),
            dots_of_bytes(builder, constant(bytes_, 1 << LOW_BITS, 2 << LOW_BITS), high),
        )
        if bits == 4:
            return dots_of_halves(builder, total, constant(halves, 1, 4))
        eights = range(0, 2 * lanes, 8)
        each = [[at + i for at in eights[g::2] for i in range(8)] for g in (0, 1)]
        kind = ir.VectorType(I32, lanes)
        first, second = (builder.shuffle_vector(total, total, ir.Constant(kind, m)) for m in each)
        return builder.sext(builder.add(first, second), kind)

    @intrinsic
    def add(typing, dots, weight, at, panel, where, size):
        def codegen(context, builder, signature, values):
            tile, count = values[0], signature.args[0].count

            def loaded(argument: int, beyond: int, vector: Vector) -> Any:
                """From array `argument`, so far beyond the place that follows it."""
                array, place = values[argument : argument + 2]
                place = builder.add(place, place.type(beyond))
                of = signature.args[argument]
                value = builder.load(address_of(context, builder, of, (array, place), vector.ir))
                value.align = 1
                return value

            sums: list[Any] = [None] * 2 * count
            for step in range(first, last):
                chunk = loaded(1, WORD_ROWS * (step // 2), bytes_)
                nibbles = (
                    builder.lshr(chunk, constant(bytes_, 4))
                    if step % 2
                    else builder.and_(chunk, constant(bytes_, 15))
                )
                group = step * together
                for i in range(2 * count):
                    t, high = divmod(i, 2)
                    beyond = (group // 2 * count + t) * PAIR + (2 * high + group % 2) * (PAIR // 4)
                    found = shuffled(builder, loaded(3, beyond, table), nibbles)
                    sums[i] = builder.add(sums[i], found) if sums[i] else found
            for t in range(count):
                total = in_lanes(builder, *sums[2 * t : 2 * t + 2])
                total = builder.add(builder.extract_value(tile, t), total)
                tile = builder.insert_value(tile, total, t)
            return tile

        return dots(dots, weight, types.intp, panel, types.intp, types.intp), codegen

    return add


class LookingUp(Meeting):
    """By looking up what bits select: the panel has sixteen sums of two bytes for a group."""

    def dots(self, layout: Layout) -> tuple[Any, ...]:
        bits, parts = sum(layout.planes), layout.parts
        each = GROUPS * bits // 4 // parts
        return tuple(of_steps(bits, self.lanes, p * each, p * each + each) for p in range(parts))


AVX2 = LookingUp(8, PAIR // 2, lay_sums, Blocking((4, 2, 1), 16, 32))
AVX512 = LookingUp(16, PAIR // 2, lay_sums, Blocking((4, 2, 1), 16, 32))
AVX2_SHARES = shares(AVX2, "lut_avx2", FORMATS)
AVX512_SHARES = shares(AVX512, "lut_avx512", FORMATS)
