"""Several vectors at once: rows transposed, loaded, accumulated and stored; and arrays on the
stack."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

from kernels.cpu.isa.simd import (
    CACHE_LINE,
    I32,
    address_of,
    broadcast,
    call_llvm,
    f32x16,
    first_lanes_mask,
    load,
    shuffle,
    suffix,
)
from kernels.cpu.isa.tiles import add_product, spread, zeros
from kernels.cpu.runtime.closures import inlined, inner

LANES = 16


@intrinsic(prefer_literal=True)
def stack(typing, dtype, count):
    """A 1-d array of `count` elements on this function's stack, uninitialised, cache-line aligned.
    It lives as long as the function: pass it down, never return it."""
    result = types.Array(dtype.dtype, 1, "C")
    if not isinstance(count, types.IntegerLiteral):
        raise TypeError("the size of an array on the stack is a constant")

    def codegen(context, builder, signature, values):
        element = context.get_data_type(result.dtype)
        size = context.get_abi_sizeof(element)
        with builder.goto_entry_block():  # once, and not zeroed as Numba's own alloca_once does
            memory = builder.alloca(ir.ArrayType(element, count.literal_value))
        memory.align = CACHE_LINE
        view = context.make_array(result)(context, builder)
        populate_array(
            view,
            data=builder.bitcast(memory, element.as_pointer()),
            shape=[context.get_constant(types.intp, count.literal_value)],
            strides=[context.get_constant(types.intp, size)],
            itemsize=context.get_constant(types.intp, size),
            meminfo=None,
        )
        return view._getvalue()

    return result(dtype, count), codegen


# Masks that are one instruction on every ISA: pairs within a quarter, then quarters.
LOW = [quarter + lane for quarter in (0, 4, 8, 12) for lane in (0, 16, 1, 17)]
HIGH = [lane + 2 for lane in LOW]
LOW_PAIRS = [quarter + lane for quarter in (0, 4, 8, 12) for lane in (0, 1, 16, 17)]
HIGH_PAIRS = [lane + 2 for lane in LOW_PAIRS]
EVEN_QUARTERS = [quarter + lane for quarter in (0, 8, 16, 24) for lane in range(4)]
ODD_QUARTERS = [lane + 4 for lane in EVEN_QUARTERS]


def _shuffles(masks: list[list[int]]) -> Any:
    """The code of a 4x4 transposition: masks that part each of two pairs, then what those gave."""

    def codegen(context, builder, signature, values):
        a, b, c, d = values
        first, then = masks[:2], masks[2:]
        halves = [(shuffle(builder, a, b, m), shuffle(builder, c, d, m)) for m in first]
        vectors = [shuffle(builder, *pair, mask) for pair in halves for mask in then]
        return context.make_tuple(builder, signature.return_type, vectors)

    return codegen


def words_of_rows(builder: Any, rows: Any, byte: int) -> list[Any]:
    """Four vectors of words, a row a lane: word w of each of sixteen rows stands at its pointer
    plus `byte` + 4 w."""
    four = ir.VectorType(I32, 4)

    def quarter(row: Any) -> Any:
        place = builder.gep(row, [ir.IntType(64)(byte)])
        words = builder.load(builder.bitcast(place, four.as_pointer()))
        words.align = 1
        return words

    def joined(a: Any, b: Any) -> Any:
        return shuffle(builder, a, b, range(2 * a.type.count))

    # rows i, 4 + i, 8 + i and 12 + i side by side, so that a transposed square is four lanes
    a, b, c, d = (
        joined(
            joined(quarter(rows[i]), quarter(rows[4 + i])),
            joined(quarter(rows[8 + i]), quarter(rows[12 + i])),
        )
        for i in range(4)
    )
    halves = [(shuffle(builder, a, b, m), shuffle(builder, c, d, m)) for m in (LOW, HIGH)]
    return [shuffle(builder, *pair, m) for pair in halves for m in (LOW_PAIRS, HIGH_PAIRS)]


def columns_of_rows(builder: Any, rows: Any, byte: int, bits: int) -> list[Any]:
    """Columns of elements of so many bits, 16 or 32, which are a row a lane: of 32 bytes of each of
    sixteen rows, from its pointer plus `byte` on, in order. For AVX-512: of its units for vectors
    more can mix within quarters, as most of this does, than join or permute registers (Zen 5: four
    and two)."""
    eight = ir.VectorType(I32, 8)

    def half(row: Any) -> Any:
        place = builder.gep(row, [ir.IntType(64)(byte)])
        words = builder.load(builder.bitcast(place, eight.as_pointer()))
        words.align = 1
        return words

    def squares(first: int) -> list[Any]:
        # rows i and 4 + i side by side, so that a transposed square is a quarter of a register
        pairs = ((rows[first + i], rows[first + 4 + i]) for i in range(4))
        a, b, c, d = (shuffle(builder, half(one), half(other), range(16)) for one, other in pairs)
        halves = [(shuffle(builder, a, b, m), shuffle(builder, c, d, m)) for m in (LOW, HIGH)]
        return [shuffle(builder, *pair, m) for pair in halves for m in (LOW_PAIRS, HIGH_PAIRS)]

    each = 32 // bits  # elements of a word
    kind = ir.VectorType(ir.IntType(bits), LANES * each)
    low, high = ([builder.bitcast(v, kind) for v in squares(first)] for first in (0, 8))
    found = []
    for quarter in (0, 1):
        for c in range(4):
            words = [
                16 * s + 4 * q + r for s in (0, 1) for q in (quarter, quarter + 2) for r in range(4)
            ]
            lanes = [each * word + e for e in range(each) for word in words]
            both = shuffle(builder, low[c], high[c], lanes)
            parts = (range(LANES * e, LANES * e + LANES) for e in range(each))
            found += [shuffle(builder, both, both, part) for part in parts] if each > 1 else [both]
    return found


@intrinsic
def transpose_quarters(typing, a, b, c, d):
    """Four rows of 4x4 squares, f32x16 each: every square transposed. So vector i has elements i, 4
    + i, 8 + i and 12 + i of each row, four rows side by side."""
    return types.UniTuple(a, 4)(a, a, a, a), _shuffles([LOW, HIGH, LOW_PAIRS, HIGH_PAIRS])


@intrinsic
def gather_quarters(typing, a, b, c, d):
    """Four vectors of f32x16: vector i has quarter i of each of them.

    Of vectors i that transpose_quarters gave, so columns i, 4 + i, 8 + i and 12 + i of 16 rows.
    """
    masks = [EVEN_QUARTERS, ODD_QUARTERS, EVEN_QUARTERS, ODD_QUARTERS]
    code = _shuffles(masks)

    def codegen(context, builder, signature, values):
        vectors = cgutils.unpack_tuple(builder, code(context, builder, signature, values))
        in_order = [vectors[i] for i in (0, 2, 1, 3)]
        return context.make_tuple(builder, signature.return_type, in_order)

    return types.UniTuple(a, 4)(a, a, a, a), codegen


@intrinsic
def load_rows(typing, like, array, offset, stride):
    """A tuple like `like` whose vector r is at array[offset + r * stride:]."""

    def codegen(context, builder, signature, values):
        vectors = []
        for r in range(like.count):
            at = builder.add(values[2], builder.mul(values[3], values[3].type(r)))
            pointer = address_of(context, builder, array, (values[1], at), like.dtype.ir)
            vectors.append(builder.load(pointer))
            vectors[-1].align = 4
        return context.make_tuple(builder, like, vectors)

    return like(like, array, types.intp, types.intp), codegen


@intrinsic
def store_rows(typing, array, offset, stride, vectors):
    """array[offset + r * stride:] = vector r, for each of a tuple."""

    def codegen(context, builder, signature, values):
        for r, vector in enumerate(cgutils.unpack_tuple(builder, values[3])):
            at = builder.add(values[1], builder.mul(values[2], values[2].type(r)))
            pointer = address_of(context, builder, array, (values[0], at), vector.type)
            builder.store(vector, pointer).align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vectors), codegen


@intrinsic
def fma_rows(typing, sums, v, array, offset, stride):
    """The tuple of sums[r] + v * array[offset + r * stride]."""

    def codegen(context, builder, signature, values):
        totals = []
        data = context.make_array(array)(context, builder, values[2]).data
        for r, total in enumerate(cgutils.unpack_tuple(builder, values[0])):
            at = builder.add(values[3], builder.mul(values[4], values[4].type(r)))
            scalar = broadcast(builder, v, builder.load(builder.gep(data, [at])))
            product = [values[1], scalar, total]
            totals.append(call_llvm(builder, f"llvm.fmuladd.{suffix(v)}", v.ir, product))
        return context.make_tuple(builder, sums, totals)

    return sums(sums, v, array, types.intp, types.intp), codegen


def rows_of_two(step: Any) -> Any:
    """`outer_of_two` of scalars that need not be neighbours, (sums, others, v, w, array, offset,
    stride) -> both: scalar r is array[offset + r * stride]."""

    @intrinsic
    def operation(typing, sums, others, v, w, array, offset, stride):
        function = typing.resolve_value_type(step)
        call = function.get_call_type(typing, (sums.dtype, v, v), {})
        both = types.UniTuple(sums, 2)

        def codegen(context, builder, signature, values):
            compiled = context.get_function(function, call)
            data = context.make_array(array)(context, builder, values[4]).data
            tiles = list(values[:2])
            for r in range(sums.count):
                at = builder.add(values[5], builder.mul(values[6], values[6].type(r)))
                scalar = spread(builder, v, builder.load(builder.gep(data, [at])))
                for i, vector in enumerate(values[2:4]):
                    one = builder.extract_value(tiles[i], r)
                    total = compiled(builder, [one, vector, scalar])
                    tiles[i] = builder.insert_value(tiles[i], total, r)
            return context.make_tuple(builder, both, tiles)

        return both(sums, sums, v, v, array, types.intp, types.intp), codegen

    return operation


fma_rows_of_two = rows_of_two(add_product)


@intrinsic
def first_lanes(typing, v, count, rest):
    """The first `count` lanes of v, then those of `rest`."""

    def codegen(context, builder, signature, values):
        mask = first_lanes_mask(builder, v.lanes, values[1])
        return builder.select(mask, values[0], values[2])

    return v(v, types.intp, v), codegen


@inlined
def store_columns(a, b, c, d, target, start, step):
    """Store the sixteen columns of squares that transpose_quarters gave, in order, `step` apart."""
    e, f = gather_quarters(a[0], b[0], c[0], d[0]), gather_quarters(a[1], b[1], c[1], d[1])
    g, h = gather_quarters(a[2], b[2], c[2], d[2]), gather_quarters(a[3], b[3], c[3], d[3])
    store_rows(target, start, step, (e[0], f[0], g[0], h[0]))
    store_rows(target, start + 4 * step, step, (e[1], f[1], g[1], h[1]))
    store_rows(target, start + 8 * step, step, (e[2], f[2], g[2], h[2]))
    store_rows(target, start + 12 * step, step, (e[3], f[3], g[3], h[3]))


@inner
def transpose(source, offset, stride, target, start):
    """Transpose sixteen rows of sixteen words of four bytes, `stride` elements apart from
    source[offset:], to target[start:]."""
    like = zeros(f32x16, 4)
    a = transpose_quarters(*load_rows(like, source, offset, stride))
    b = transpose_quarters(*load_rows(like, source, offset + 4 * stride, stride))
    c = transpose_quarters(*load_rows(like, source, offset + 8 * stride, stride))
    d = transpose_quarters(*load_rows(like, source, offset + 12 * stride, stride))
    store_columns(a, b, c, d, target, start, LANES)


@inlined
def four_rows(source, offset, stride, last):
    """Four of an array's rows, from source[offset:]; row `last` is repeated, even one before."""
    return (
        load(f32x16, source, offset + min(0, last) * stride),
        load(f32x16, source, offset + min(1, last) * stride),
        load(f32x16, source, offset + min(2, last) * stride),
        load(f32x16, source, offset + min(3, last) * stride),
    )


@inner
def transpose_first(source, offset, stride, rows, target, start):
    """The same for fewer rows, with adjacent columns. Each is stored as sixteen words; the next
    store overwrites the surplus, and the last one's store has none."""
    a = transpose_quarters(*four_rows(source, offset, stride, rows - 1))
    b = transpose_quarters(*four_rows(source, offset + 4 * stride, stride, rows - 5))
    c = transpose_quarters(*four_rows(source, offset + 8 * stride, stride, rows - 9))
    d = transpose_quarters(*four_rows(source, offset + 12 * stride, stride, rows - 13))
    store_columns(a, b, c, d, target, start, rows)
