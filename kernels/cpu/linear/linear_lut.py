"""linear for block formats of two to four bits by looked up sums: `lut_avx2` and `lut_avx512`.

A code is its bits, so a dot is 2^i times the sum of those activations whose code has bit i, over i
(T-MAC, arXiv 2407.00088). The sixteen sums that a group of four activations can have are a table,
built once for all rows; the group's bits i of a row are a nibble that names one of them; and a byte
shuffle looks up as many as a vector has bytes. T-MAC rounds the sums to int8. Here they stay whole:
16 * high + low, a table of each. Four low bytes add up to 60 at most, four high ones to -128 to
124: what four steps look up is added up in bytes, exactly, and only then multiplied by what its
bit is worth. All else is linear_blocks.py's, and so are the bits of the result.

Packed weights are as layouts.py says but for what is in a plane: chunks of 64 bytes, one step of
lookups in each of its two nibbles, the lower first. Steps go through the groups in order:

- a plane of four bits: a step is a group, [16 rows][4 bits];
- of two bits: a step is two groups, [16 rows][2 groups][2 bits], or for `lut_avx2`, which looks up
  sixteen bytes in one table, [2 halves of rows][2 groups][8 rows][2 bits];
- of one bit, Q3_K's third: a step is four groups, [16 rows][4 groups], whose tables are two pairs'.
  `lut_avx2` has no instruction that looks up eight bytes in one table and eight in another.

The panel has for each pair of groups, [tokens of the tile], the low bytes of both and then the high
ones: eight times as many bytes as activations.
"""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.formats.layouts import WORD_ROWS, Layout
from kernels.cpu.isa.simd import I32, Vector, address_of, broadcast, i8x32, i8x64, i32x8, loading
from kernels.cpu.isa.simd_x86 import (
    dots_of_bytes,
    dots_of_fours,
    dots_of_halves,
    permuted,
    permuted_of_two,
    shuffled,
)
from kernels.cpu.linear.linear import Blocking
from kernels.cpu.linear.linear_blocks import Microkernel, shares

FORMATS = "Q4_0", "Q2_K", "TQ1_0", "TQ2_0"
FORMATS_OF_AVX512 = (*FORMATS, "Q3_K")
GROUPS = 8  # of four elements, in a block
PAIR = 16  # words of the panel: two groups' sums, in two bytes each
LOW_BITS = 4  # of a sum, in the table of low bytes
STEPS = 4  # that may be added in bytes

i8x16, i16x16 = Vector("i8", 16), Vector("i16", 16)


@intrinsic
def store_sums(typing, panel, at, four):
    """Store the sixteen sums of subsets of a word's four int8: sum n includes byte j if bit j of n
    is set. Low bytes go to panel[at:], high ones half a pair further, in words."""

    def codegen(context, builder, signature, values):
        sums = None
        for first in (0, 2):
            half = builder.trunc(builder.lshr(values[2], I32(8 * first)), ir.IntType(16))
            pair = builder.bitcast(broadcast(builder, i16x16, half), i8x32.ir)
            taken = [n >> j & 1 for n in range(16) for j in (first, first + 1)]
            found = dots_of_bytes(builder, ir.Constant(i8x32.ir, taken), pair)
            sums = builder.add(sums, found) if sums else found
        low = builder.and_(sums, ir.Constant(i16x16.ir, [(1 << LOW_BITS) - 1] * 16))
        high = builder.ashr(sums, ir.Constant(i16x16.ir, [LOW_BITS] * 16))
        for part, beyond in ((low, 0), (high, PAIR // 2)):
            where = builder.add(values[1], values[1].type(beyond))
            pointer = address_of(context, builder, signature.args[0], (values[0], where), i8x16.ir)
            builder.store(builder.trunc(part, i8x16.ir), pointer).align = 16
        return context.get_dummy_value()

    return types.void(panel, types.intp, types.int32), codegen


@njit(inline="always")
def pack_sums(panel, k, t, size, four):
    store_sums(panel, (k // 2 * size + t) * PAIR + k % 2 * (PAIR // 4), four)


def weights(vector: Vector, *values: int) -> Any:
    """Repeat these."""
    return ir.Constant(vector.ir, [*values] * (vector.lanes // len(values)))


# (builder, load, pair, index, bits, which, apart): what is looked up in the tables of groups from
# `which` of the pair on; the next pair lies so many words apart.


def in_quarters(
    builder: Any, load: Any, pair: int, index: Any, bits: int, which: int, apart: int
) -> Any:
    """Lookup of each sixteen bytes in a table of their own (AVX2)."""
    tables = load(pair + which * PAIR // 4, Vector("i8", 64 // bits))
    return shuffled(builder, tables, index)


def among_four(
    builder: Any, load: Any, pair: int, index: Any, bits: int, which: int, apart: int
) -> Any:
    """Lookup of each byte in its table of the pair's, or of two pairs' (AVX-512 VBMI)."""
    if bits == 1:
        tables = weights(i8x64, *(16 * (which + i % 2) + 64 * (i // 2) for i in range(4)))
        both = load(pair, i8x64), load(pair + apart, i8x64)
        return permuted_of_two(builder, *both, builder.or_(index, tables))
    tables = weights(i8x64, *(16 * (which + i // bits) for i in range(4)))
    return permuted(builder, load(pair, i8x64), builder.or_(index, tables))


def by_pairs(builder: Any, bits: int, lowest: int, dots: Any, low: Any, high: Any) -> Any:
    """i32x8 plus sums of bytes, each times its bit's value (AVX2)."""
    assert not lowest
    total = builder.add(
        dots_of_bytes(builder, low, weights(i8x32, 1, 2)),
        dots_of_bytes(builder, weights(i8x32, 1 << LOW_BITS, 2 << LOW_BITS), high),
    )
    if bits == 4:
        return builder.add(dots, dots_of_halves(builder, total, weights(i16x16, 1, 4)))
    first, second = (
        builder.shuffle_vector(total, total, weights(i32x8, *range(at, at + 8))) for at in (0, 8)
    )
    return builder.add(dots, builder.sext(builder.add(first, second), dots.type))


def by_fours(builder: Any, bits: int, lowest: int, dots: Any, low: Any, high: Any) -> Any:
    """The same for i32x16 (AVX-512 VNNI)."""
    worth = [1 << lowest + i % bits for i in range(4)]
    dots = dots_of_fours(builder, dots, low, weights(i8x64, *worth))
    return dots_of_fours(builder, dots, weights(i8x64, *(w << LOW_BITS for w in worth)), high)


@dataclass(frozen=True, slots=True)
class Plane:
    """A plane of codes' bits: so many from `lowest`, in a block's chunks from `chunk`."""

    bits: int
    lowest: int
    chunk: int

    @property
    def steps(self) -> int:
        return GROUPS * self.bits // 4


def planes_of(layout: Layout) -> list[Plane]:
    found: list[Plane] = []
    lowest = chunk = 0
    for bits in layout.planes:
        found.append(Plane(bits, lowest, chunk))
        lowest, chunk = lowest + bits, chunk + found[-1].steps // 2
    return found


def of_steps(way: "LookupTables", plane: Plane, first: int, last: int) -> Any:
    """An intrinsic of (dots, weight, at, panel, where, size): dots plus steps `first` to `last` of
    a block's plane."""
    bits = plane.bits
    together = 4 // bits  # groups of a step
    bytes_ = Vector("i8", 4 * way.lanes)
    look, settle = way.look, way.settle

    @intrinsic
    def add(typing, dots, weight, at, panel, where, size):
        def codegen(context, builder, signature, values):
            tile, count = values[0], signature.args[0].count

            loaded = loading(context, builder, signature, values)

            def tables(beyond: int, vector: Vector) -> Any:
                return loaded(3, beyond, vector.ir)

            for begin in range(first, last, STEPS):
                sums: list[Any] = [None] * 2 * count
                for step in range(begin, min(begin + STEPS, last)):
                    index = loaded(1, WORD_ROWS * (plane.chunk + step // 2), bytes_.ir)
                    if step % 2:
                        index = builder.lshr(index, weights(bytes_, 4))
                    else:
                        index = builder.and_(index, weights(bytes_, 15))
                    group = step * together
                    for i in range(2 * count):
                        t, high = divmod(i, 2)
                        pair = (group // 2 * count + t) * PAIR
                        which, apart = 2 * high + group % 2, count * PAIR
                        found = look(builder, tables, pair, index, bits, which, apart)
                        sums[i] = builder.add(sums[i], found) if sums[i] else found
                for t in range(count):
                    total = builder.extract_value(tile, t)
                    total = settle(builder, bits, plane.lowest, total, *sums[2 * t : 2 * t + 2])
                    tile = builder.insert_value(tile, total, t)
            return tile

        return dots(dots, weight, types.intp, panel, types.intp, types.intp), codegen

    return add


def one_by_one(first: Any, second: Any) -> Any:
    @njit(inline="always")
    def add(dots, weight, at, panel, where, size):
        dots = first(dots, weight, at, panel, where, size)
        return second(dots, weight, at, panel, where, size)

    return add


@dataclass(frozen=True, slots=True)
class LookupTables(Microkernel):
    """Dots by table lookup: the panel has sixteen two-byte sums for each group."""

    look: Any
    settle: Any

    def dots(self, layout: Layout) -> tuple[Any, ...]:
        planes, parts = planes_of(layout), layout.parts

        def of_part(part: int) -> Any:
            each = [(plane, plane.steps // parts) for plane in planes]
            steps = [of_steps(self, p, part * n, part * n + n) for p, n in each]
            return steps[0] if len(steps) == 1 else one_by_one(*steps)

        return tuple(map(of_part, range(parts)))


# Tables leave no room in the first cache for prefetched weights. Without prefetching a single
# token takes 1.6 times as long, from memory.
BLOCKING = Blocking((4, 2, 1), 8, 64)
AVX2 = LookupTables(8, PAIR // 2, pack_sums, BLOCKING, in_quarters, by_pairs)
AVX512 = LookupTables(16, PAIR // 2, pack_sums, BLOCKING, among_four, by_fours)
AVX2_SHARES = shares(AVX2, "lut_avx2", FORMATS)
AVX512_SHARES = shares(AVX512, "lut_avx512", FORMATS_OF_AVX512)
