"""linear for block formats in AVX2, `avx2`: products are added in 16 bits while they surely fit.

vpmaddubsw adds two neighbours' products in int16, and widening that to int32 (vpmaddwd) costs as
much again. So products of several words are added first: with codes up to c and activations
within 128, a word gives at most 2 * 128 * c, and 4-bit codes of a whole block fit. What widens
them multiplies, too: by a part's integer scale, where it has one.

Codes beyond 128 are signed: |w| times an activation with w's sign. A tile is three tokens by
sixteen rows, so that a word of activations, once broadcast, meets two vectors of weights; these are
unpacked to bytes once for all tokens of a panel.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.formats.layouts import BLOCK, GRIDS, LAYOUTS, WORD_ROWS, Layout
from kernels.cpu.isa.simd import (
    CACHE_LINE,
    I32,
    Vector,
    broadcast,
    constant,
    i8x32,
    i32x8,
    load,
    loading,
    prefetch,
    shuffle,
    store,
)
from kernels.cpu.isa.simd_shuffle import store_rows
from kernels.cpu.isa.simd_x86 import dots_of_bytes, dots_of_halves, looked_up, with_sign_of
from kernels.cpu.linear import linear_int8
from kernels.cpu.linear.linear import LANES, Blocking, Lowering
from kernels.cpu.linear.linear_blocks import Microkernel, shares
from kernels.cpu.linear.linear_int8 import code_of, pack_word
from kernels.cpu.runtime.closures import inner

ROWS = 8  # of a vector, a lane each
WORDS = BLOCK // 4  # of a block's row
LARGEST = 128  # of an activation's byte
MOST = (1 << 15) - 1
I16 = ir.IntType(16)
i8x16, i16x16 = Vector("i8", 16), Vector("i16", 16)


def signed(layout: Layout) -> bool:
    """Whether codes are met as the signed values before their offset."""
    return layout.widest >= LARGEST


def words_together(layout: Layout) -> int:
    """How many words' products may be added in int16."""
    return max(1, MOST // (2 * LARGEST * layout.widest))


def _twice(builder: Any, wide: Any) -> Any:
    return shuffle(builder, wide, wide, [i // 2 for i in range(2 * wide.type.count)])


@intrinsic
def twice(typing, v):
    """Each signed byte as two equal int16."""

    def codegen(context, builder, signature, values):
        return _twice(builder, builder.sext(values[0], ir.VectorType(I16, v.lanes)))

    return Vector("i16", 2 * v.lanes)(v), codegen


@intrinsic
def low_nibbles_twice(typing, v):
    """The same of each byte's four low bits."""

    def codegen(context, builder, signature, values):
        low = builder.and_(values[0], constant(values[0].type, 15))
        return _twice(builder, builder.zext(low, ir.VectorType(I16, v.lanes)))

    return Vector("i16", 2 * v.lanes)(v), codegen


def factors_of(layout: Layout, rows: int) -> Any:
    """(weight, at) -> the integers at byte `at` that multiply the dots of a part, as pairs."""
    narrow, bytes_ = low_nibbles_twice if layout.packed_scales else twice, Vector("i8", rows)

    @njit(inline="always")
    def factors(weight, at):
        return narrow(load(bytes_, weight, at))

    return factors


def in_order(builder: Any, vectors: Iterable[Any]) -> list[Any]:
    """These vectors, of which LLVM knows nothing from here on: it would add in trees, or finish one
    sum after the other, for which registers are too few."""
    given = list(vectors)
    kinds, places = [v.type for v in given], range(len(given))
    words = ",".join([*("=x" for _ in places), *map(str, places)])
    result = ir.LiteralStructType(kinds) if len(given) > 1 else kinds[0]
    kept = builder.call(ir.InlineAsm(ir.FunctionType(result, kinds), "", words), given)
    return [builder.extract_value(kept, i) for i in places] if len(given) > 1 else [kept]


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
        vectors = range(totals.dtype.lanes // ROWS)

        def codegen(context, builder, signature, values):
            tile, tokens = values[0], range(signature.args[0].count)
            loaded = loading(context, builder, signature, values)

            def half(v: Any, i: int) -> Any:
                each = v.type.count // len(vectors)
                return shuffle(builder, v, v, range(each * i, each * i + each))

            def plane(i: int) -> Any:
                return lambda number: loaded(2, number * WORD_ROWS + 4 * ROWS * i, i8x32.ir)

            times = [constant(i16x16.ir, 1) for _ in vectors]
            if not isinstance(signature.args[1], types.NoneType):
                times = [half(values[1], i) for i in vectors]
            before = [builder.extract_value(tile, t) for t in tokens]
            sums = [[half(total, i) for i in vectors] for total in before]
            for first in range(0, count, together):
                halves: dict[tuple[int, int], Any] = {}
                for word in words[first : first + together]:
                    codes = [codes_of(builder, layout, plane(i), word) for i in vectors]
                    for t in tokens:
                        four = loaded(4, word * len(tokens) + t, I32)
                        four = builder.bitcast(broadcast(builder, i32x8, four), i8x32.ir)
                        for i, (sizes, sign) in enumerate(codes):
                            meet = with_sign_of(builder, four, sign) if sign else four
                            dots = dots_of_bytes(builder, sizes, meet)
                            held = halves.get((t, i))
                            halves[t, i] = builder.add(held, dots) if held else dots
                    if together > 1:
                        halves = dict(zip(halves, in_order(builder, halves.values()), strict=True))
                for (t, i), held in halves.items():
                    dots = dots_of_halves(builder, held, times[i])
                    sums[t][i] = builder.add(sums[t][i], dots)
                if together == 1:
                    flat = in_order(builder, [v for parts in sums for v in parts])
                    sums = [flat[n : n + len(vectors)] for n in range(0, len(flat), len(vectors))]
            for t, parts in enumerate(sums):
                whole = parts[0]
                if len(parts) == 2:
                    whole = shuffle(builder, parts[0], parts[1], range(2 * ROWS))
                tile = builder.insert_value(tile, whole, t)
            return tile

        signature = totals(totals, factors, weight, types.intp, panel, types.intp, types.intp)
        return signature, codegen

    return add


def unscaled(of_part: Any) -> Any:
    @njit(inline="always")
    def add(dots, weight, at, panel, where, size):
        return of_part(dots, None, weight, at, panel, where, size)

    return add


def to_bytes(layout: Layout) -> Lowering:
    """Codes become bytes; integers, d and m stay as they are."""
    lowered = layout.in_bytes()
    blocks, step, block_step, payload = layout.blocks, layout.step, layout.block, layout.payload
    to_step, to_block, to_payload = lowered.step, lowered.block, lowered.payload
    first, second = linear_int8.codes_of(layout, ROWS)

    @njit(inline="always")
    def copy(weight, begin, end, to, at):
        for k in range(0, end - begin, LANES):
            store(to, at + k, load(i8x16, weight, begin + k))

    @inner
    def lower(weight, at, group_bytes, units, to):
        for u in range(units):
            base, place = at + u * step, u * to_step
            for line in range(base, base + step, CACHE_LINE):
                prefetch(weight, line + group_bytes, 2)
            for b in range(blocks):
                block, own = base + b * block_step, place + b * to_block
                for half in range(0, WORD_ROWS, 4 * ROWS):
                    at_half = own + half
                    store_rows(to, at_half, WORD_ROWS, first(weight, block + half))
                    at_half += 4 * WORD_ROWS
                    store_rows(to, at_half, WORD_ROWS, second(weight, block + half))
                copy(weight, block + payload, block + block_step, to, own + to_payload)
            ends = blocks * block_step
            copy(weight, base + ends, base + step, to, place + blocks * to_block)

    return Lowering(lower, to_step)


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
        parts = tuple(of_part(layout, part) for part in range(layout.parts))
        return factors_of(layout, self.lanes), parts

    def lowered(self, layout: Layout) -> tuple[Layout, Lowering] | None:
        return None if layout.planes == (8,) else (layout.in_bytes(), to_bytes(layout))


AVX2 = Avx2(LANES, 1, pack_word, Blocking((3, 2, 1), 96, 32))
SHARES = shares(AVX2, "avx2", [f for f in LAYOUTS if f not in GRIDS])
