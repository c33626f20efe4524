"""Gathers sixteen rows of a weight in the file's layout into the packed layout that linear streams,
one row a lane. So the product of any sixteen rows has the same bits as linear's on packed
weights."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.isa.simd import (
    CACHE_LINE,
    ELEMENTS,
    I32,
    Vector,
    address_of,
    broadcast,
    call_llvm,
    convert,
    f32x16,
    fma,
    i32x16,
    load,
    prefetch,
    splat,
    store,
    suffix,
    widened,
    zero,
)
from kernels.cpu.isa.simd_shuffle import columns_of_rows, stack, words_of_rows
from kernels.cpu.linear.linear import LANES
from kernels.cpu.runtime.closures import inner
from kernels.knob import Knob

ALONG = Knob(
    "along",
    (0, 128, 256, 512, 1024, 2048),
    0,
    "bytes ahead in each row that are asked for; 0: the rows that follow",
    (),
)
ASKED = 8  # pieces of rows between two prefetches
REST = 4 * LANES  # bytes of an element of sixteen rows, at most
I8, I16, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(64)
Words = Callable[[int], list[Any]]  # a byte of the piece -> four vectors of words, a row a lane
Put = Callable[[int, Any], None]  # a byte of the packed piece, and a vector that goes there
Copy = Callable[[int, int], None]  # a byte of the packed piece, and of the rows, whose two go there
Code = Callable[[Any, Words, Put, Any], None]


def _narrow(builder: Any, words: Any, shift: int, bits: int) -> Any:
    """Some bits of each word as narrower numbers."""
    kind = ir.VectorType(ir.IntType(bits), LANES)
    return builder.trunc(builder.lshr(words, ir.Constant(i32x16.ir, [shift] * LANES)), kind)


def _masked(builder: Any, words: Any, byte: int, left: int = 0) -> Any:
    """Mask these bits of each byte, then shift left, or right before masking."""
    if left < 0:
        words = builder.lshr(words, ir.Constant(i32x16.ir, [-left] * LANES))
    each = byte * 0x01010101
    words = builder.and_(words, ir.Constant(i32x16.ir, [each - (each >> 31 << 32)] * LANES))
    if left > 0:
        words = builder.shl(words, ir.Constant(i32x16.ir, [left] * LANES))
    return words


def _words(builder: Any, words: Words, put: Put, copy: Copy) -> None:
    for i, word in enumerate(words(0)):
        put(64 * i, word)


def _halves(builder: Any, words: Words, put: Put, copy: Copy) -> None:
    for i, word in enumerate(words(0)):
        put(64 * i, _narrow(builder, word, 0, 16))
        put(64 * i + 32, _narrow(builder, word, 16, 16))


def _q4_0(builder: Any, words: Words, put: Put, copy: Copy) -> None:
    for i, word in enumerate(words(2)):
        put(64 * i, word)
    copy(256, 0)


def _q8_0(builder: Any, words: Words, put: Put, copy: Copy) -> None:
    raised = ir.Constant(i32x16.ir, [-0x7F7F7F80] * LANES)  # 0x80 in every byte
    for i, word in enumerate([*words(2), *words(18)]):
        put(64 * i, builder.xor(word, raised))
    copy(512, 0)


def _q4_k(builder: Any, words: Words, put: Put, copy: Copy) -> None:
    d_m, low_d, low_m, high = words(0)

    def joined(bits: Any, two: Any) -> Any:
        return builder.or_(bits, _masked(builder, two, 0x30, -2))

    integers = _masked(builder, low_d, 0x3F), joined(_masked(builder, high, 0x0F), low_d)
    mins = _masked(builder, low_m, 0x3F), joined(_masked(builder, high, 0x0F, -4), low_m)
    for block in range(8):
        for place, found in ((256, integers), (272, mins)):
            put(288 * block + place, _narrow(builder, found[block // 4], 8 * (block % 4), 8))
    for pair in range(4):
        codes = [*words(16 + 32 * pair), *words(32 + 32 * pair)]
        for c in range(4):
            first, second = codes[c], codes[c + 4]
            low = builder.or_(_masked(builder, first, 0x0F), _masked(builder, second, 0x0F, 4))
            high = builder.or_(_masked(builder, first, 0x0F, -4), _masked(builder, second, 0xF0))
            put(288 * 2 * pair + 64 * c, low)
            put(288 * (2 * pair + 1) + 64 * c, high)
    put(2304, _narrow(builder, d_m, 0, 16))
    put(2336, _narrow(builder, d_m, 16, 16))


@dataclass(frozen=True, slots=True)
class Piece:
    """The unit of gathering: `bytes` of the file, which become `units` of the packed layout, of
    `step` bytes for sixteen rows each."""

    bytes: int
    units: int
    step: int
    code: Code

    @property
    def unit_bytes(self) -> int:
        """Bytes of the file for one unit of one row."""
        return self.bytes // self.units

    @property
    def together(self) -> int:
        """Units between two prefetches."""
        return ASKED * self.units

    @property
    def lines(self) -> int:
        """Of sixteen rows, that so many units take."""
        return -(-ASKED * self.bytes * LANES // CACHE_LINE)


PIECES = {
    "F32": Piece(16, 4, 64, _words),
    "F16": Piece(16, 8, 32, _halves),
    "BF16": Piece(16, 8, 32, _halves),
    "Q4_0": Piece(18, 1, 288, _q4_0),
    "Q8_0": Piece(34, 1, 544, _q8_0),
    "Q4_K": Piece(144, 1, 2368, _q4_k),
}


def _rows(
    context: Any, builder: Any, weight: Any, starts: Any, values: Any
) -> tuple[list[Any], Words]:
    """Pointers to sixteen rows, and words of them; values are (weight, starts, at)."""
    rows = _begins(context, builder, weight, starts, values)
    return rows, partial(words_of_rows, builder, rows)


def _begins(context: Any, builder: Any, weight: Any, starts: Any, values: Any) -> list[Any]:
    """Pointers to byte `at` of sixteen rows; values are (weight, starts, at)."""
    base = address_of(context, builder, weight, (values[0], values[2]), I8)
    first = context.make_array(starts)(context, builder, values[1]).data
    begins = (builder.load(builder.gep(first, [I64(lane)])) for lane in range(LANES))
    return [builder.gep(base, [begin]) for begin in begins]


def transpose_piece(code: Code) -> Any:
    """An intrinsic of (weight, starts, at, out, to): transposes the piece at byte `at` of sixteen
    rows, which begin at bytes starts[0] to starts[15] of the weight, to byte `to` of `out`."""

    @intrinsic
    def gather(typing, weight, starts, at, out, to):
        def codegen(context, builder, signature, values):
            rows, words = _rows(context, builder, weight, starts, values[:3])
            target = address_of(context, builder, out, values[3:], I8)

            def put(byte: int, vector: Any) -> None:
                place = builder.gep(target, [I64(byte)])
                pointer = builder.bitcast(place, vector.type.as_pointer())
                builder.store(vector, pointer).align = 1

            def copy(byte: int, source: int) -> None:
                halves = ir.Constant(ir.VectorType(I16, LANES), ir.Undefined)
                for lane, row in enumerate(rows):
                    place = builder.bitcast(builder.gep(row, [I64(source)]), I16.as_pointer())
                    half = builder.load(place, align=1)
                    halves = builder.insert_element(halves, half, I64(lane))
                put(byte, halves)

            code(builder, words, put, copy)
            return context.get_dummy_value()

        return types.void(weight, starts, types.intp, out, types.intp), codegen

    return gather


def dot_pieces(kind: Vector, piece: Piece, count: int) -> Any:
    """An intrinsic of (sums, weight, starts, at, x, k): multiplies so many consecutive pieces of a
    float format by x[0, k:] of one token: one chain of fused multiply-adds per row."""
    code, size, units, step = piece.code, piece.bytes, piece.units, piece.step

    @intrinsic
    def dot(typing, sums, weight, starts, at, x, k):
        def codegen(context, builder, signature, values):
            _, words = _rows(context, builder, weight, starts, values[1:4])
            scalars = address_of(context, builder, x, values[4:], ELEMENTS[sums.element])
            total = values[0]

            def from_byte(begin: int) -> Words:
                return lambda byte: words(begin + byte)

            def put(first: int, byte: int, vector: Any) -> None:
                nonlocal total
                one = builder.load(builder.gep(scalars, [I64(first + byte // step)]))
                w = widened(builder, kind, builder.bitcast(vector, kind.ir))
                product = [w, broadcast(builder, sums, one), total]
                total = call_llvm(builder, f"llvm.fmuladd.{suffix(sums)}", sums.ir, product)

            for i in range(count):
                code(builder, from_byte(i * size), partial(put, i * units), None)
            return total

        return sums(sums, weight, starts, types.intp, x, types.intp), codegen

    return dot


def dot_lines(kind: Vector) -> Any:
    """An intrinsic of (sums, weight, starts, at, x, k, ahead, asked): a cache line of each of
    sixteen rows of floats, met by x[0, k:] of one token (AVX-512): a chain of fused multiply-adds
    for each lane. What lies at byte `asked` of the rows that begin at `ahead` is asked for a row at
    a time among the products, since of many that are asked for at once a CPU (Zen 5) drops some,
    and into the second cache, which takes more of them at once than the first (Zen 4)."""
    bits, half = kind.bits // kind.lanes, CACHE_LINE // 2
    every = 32 // bits  # columns from one row's prefetch to the next

    @intrinsic
    def dot(typing, sums, weight, starts, at, x, k, ahead, asked):
        def codegen(context, builder, signature, values):
            rows = _begins(context, builder, weight, starts, values[1:4])
            far = _begins(context, builder, weight, ahead, (values[1], values[6], values[7]))
            scalars = address_of(context, builder, x, values[4:6], ELEMENTS["f32"])
            total = values[0]
            for part in range(2):
                columns = columns_of_rows(builder, rows, part * half, bits)
                for j, column in enumerate(columns):
                    if j % every == 0:
                        row = far[part * LANES // 2 + j // every]
                        operands = [row, I32(0), I32(2), I32(1)]
                        call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), operands)
                    one = builder.load(builder.gep(scalars, [I64(part * len(columns) + j)]))
                    w = widened(builder, kind, builder.bitcast(column, kind.ir))
                    product = [w, broadcast(builder, sums, one), total]
                    total = call_llvm(builder, f"llvm.fmuladd.{suffix(sums)}", sums.ir, product)
            return total

        return sums(sums, weight, starts, at, x, k, ahead, asked), codegen

    return dot


@inner
def prefetch_lines(weight, starts, row, byte, first, end, lines):
    """Prefetch so many lines of the next rows, one row after the other, since memory prefers
    consecutive lines. Each row is prefetched from byte `first` to `end`; -> the next (row,
    byte)."""
    at = starts[row]
    for _ in range(lines):
        prefetch(weight, at + byte, 2)
        byte += CACHE_LINE
        if byte >= end:
            row, byte = min(row + 1, len(starts) - 1), first
            at = starts[row]
    return row, byte


@inner
def prefetch_along(weight, starts, following, at, size, begin, end, along):
    """Ask for what lies so far ahead of `size` bytes from byte `at` on in each row, or at the
    beginning of the one that follows, where rows go from byte `begin` to `end`: a whole row ahead
    at most."""
    along = min(along, end - begin)
    for place in range((at + CACHE_LINE - 1) // CACHE_LINE * CACHE_LINE, at + size, CACHE_LINE):
        ahead = place + along
        if ahead < end:
            for row in range(len(starts)):
                prefetch(weight, starts[row] + ahead, 3)
        else:
            for row in range(len(starts)):
                prefetch(weight, following[row] + begin + ahead - end, 3)


def gather_elements(format: str) -> Any:
    """(weight, starts, byte, out, to): gather the element of a float format at that byte of sixteen
    rows."""
    bytes_each = PIECES[format].unit_bytes
    element = {4: types.uint32, 2: types.uint16}[bytes_each]

    @inner
    def gather(weight, starts, byte, out, to):
        for lane in range(LANES):
            store(out, to + bytes_each * lane, load(element, weight, starts[lane] + byte))

    return gather


def gather_units(format: str) -> Any:
    """(weight, starts, following, row_bytes, unit, depth, out, along): gather `depth` units from
    `unit` of sixteen rows, packed, and prefetch as much of the following ones."""
    piece = PIECES[format]
    one, size, units, step = transpose_piece(piece.code), piece.bytes, piece.units, piece.step
    bytes_each, together, lines_each = piece.unit_bytes, piece.together, piece.lines

    @inner
    def whole(weight, starts, following, row_bytes, unit, depth, out, along):
        asked = unit // together * lines_each * CACHE_LINE
        row, byte = min(asked // row_bytes, LANES - 1), asked % row_bytes
        for first in range(0, depth, together):
            if not along:
                row, byte = prefetch_lines(weight, following, row, byte, 0, row_bytes, lines_each)
            for u in range(first, min(first + together, depth), units):
                if along:
                    at = (unit + u) // units * size
                    prefetch_along(weight, starts, following, at, size, 0, row_bytes, along)
                one(weight, starts, (unit + u) // units * size, out, u * step)

    if units == 1:
        return whole
    rest = gather_elements(format)

    @inner
    def with_rest(weight, starts, following, row_bytes, unit, depth, out, along):
        done = depth // units * units
        whole(weight, starts, following, row_bytes, unit, done, out, along)
        for u in range(done, depth):
            rest(weight, starts, (unit + u) * bytes_each, out, u * step)

    return with_rest


def dot_units(format: str, kind: Vector) -> Any:
    """(weight, starts, following, row_bytes, x, along): products of sixteen rows of a float format
    with one token x [1, hidden], a vector, while the following rows are prefetched."""
    piece, rest = PIECES[format], dot_rest(format, kind)
    bytes_each, line = piece.unit_bytes, CACHE_LINE // piece.unit_bytes
    whole = dot_pieces(kind, piece, line // piece.units)

    @inner
    def dot(weight, starts, following, row_bytes, x, along):
        hidden, sums = x.shape[1], zero(f32x16)
        done, row, byte = hidden // line * line, 0, 0
        for k in range(0, done, line):
            at = k * bytes_each
            if along:
                prefetch_along(weight, starts, following, at, CACHE_LINE, 0, row_bytes, along)
            else:
                row, byte = prefetch_lines(weight, following, row, byte, 0, row_bytes, LANES)
            sums = whole(sums, weight, starts, at, x, k)
        return rest(weight, starts, done, x, sums)

    return dot


def dot_in_lines(format: str, kind: Vector) -> Any:
    """The same for AVX-512. A row's beginning is prefetched while the end of the one before is
    read; `along` 0 is a whole row ahead."""
    rest, bytes_each = dot_rest(format, kind), PIECES[format].unit_bytes
    whole, line = dot_lines(kind), CACHE_LINE // bytes_each

    @inner
    def dot(weight, starts, following, row_bytes, x, along):
        done, sums = x.shape[1] // line * line, zero(f32x16)
        ahead = min(along or row_bytes, row_bytes)
        for k in range(0, done, line):
            at = k * bytes_each
            if at + ahead < row_bytes:
                sums = whole(sums, weight, starts, at, x, k, starts, at + ahead)
            else:
                sums = whole(sums, weight, starts, at, x, k, following, at + ahead - row_bytes)
        return rest(weight, starts, done, x, sums)

    return dot


def dot_rest(format: str, kind: Vector) -> Any:
    """(weight, starts, done, x, sums): add the products of the elements after `done` of each
    row."""
    rest, bytes_each = gather_elements(format), PIECES[format].unit_bytes

    @inner
    def dot(weight, starts, done, x, sums):
        elements = stack(np.uint8, REST)
        for k in range(done, x.shape[1]):
            rest(weight, starts, k * bytes_each, elements, 0)
            sums = fma(convert(f32x16, load(kind, elements, 0)), splat(f32x16, x[0, k]), sums)
        return sums

    return dot
