"""Register tiles: a tuple of sums, one vector for each of some tokens, that stays in registers.

A tile's columns are tokens; an outer step multiplies one vector of weights by a scalar of each
token. The scalars are adjacent in a panel: array[offset + t] is token t's.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.isa.simd import (
    I32,
    Vector,
    broadcast,
    call_llvm,
    first_lanes_mask,
    lanewise,
    suffix,
)


def scalars(context: Any, builder: Any, array: Any, values: Any, count: int) -> list[Any]:
    """The `count` elements at values[1] of the array values[0]."""
    data = context.make_array(array)(context, builder, values[0]).data
    first = builder.gep(data, [values[1]])
    return [builder.load(builder.gep(first, [I32(t)])) for t in range(count)]


def spread(builder: Any, v: Vector, scalar: Any) -> Any:
    """Broadcast the scalar, a float or a word of several elements, to a vector like v."""
    word = Vector("f32" if v.element == "f32" else "i32", v.bits // 32)
    return builder.bitcast(broadcast(builder, word, scalar), v.ir)


def outer(step: Any) -> Any:
    """An intrinsic of (sums, v, array, offset): the tuple of step(sums[t], v, s) for each t, where
    s is array[offset + t] broadcast like v, as a float or as a word of several elements.

    `step` is an intrinsic too: a compiled function for each would take LLVM minutes to inline.
    """

    @intrinsic
    def operation(typing, sums, v, array, offset):
        function = typing.resolve_value_type(step)
        call = function.get_call_type(typing, (sums.dtype, v, v), {})

        def codegen(context, builder, signature, values):
            compiled = context.get_function(function, call)
            tile, vector, *where = values
            for t, scalar in enumerate(scalars(context, builder, array, where, sums.count)):
                splat = spread(builder, v, scalar)
                total = compiled(builder, [builder.extract_value(tile, t), vector, splat])
                tile = builder.insert_value(tile, total, t)
            return tile

        return sums(sums, v, array, types.intp), codegen

    return operation


def outer_of_two(step: Any) -> Any:
    """The same for two tuples, (sums, others, v, w, array, offset) -> both: each scalar is
    broadcast once."""

    @intrinsic
    def operation(typing, sums, others, v, w, array, offset):
        function = typing.resolve_value_type(step)
        call = function.get_call_type(typing, (sums.dtype, v, v), {})
        both = types.UniTuple(sums, 2)

        def codegen(context, builder, signature, values):
            compiled = context.get_function(function, call)
            tiles, vectors, where = list(values[:2]), values[2:4], values[4:]
            for t, scalar in enumerate(scalars(context, builder, array, where, sums.count)):
                splat = spread(builder, v, scalar)
                for i, vector in enumerate(vectors):
                    one = builder.extract_value(tiles[i], t)
                    total = compiled(builder, [one, vector, splat])
                    tiles[i] = builder.insert_value(tiles[i], total, t)
            return context.make_tuple(builder, both, tiles)

        return both(sums, sums, v, v, array, types.intp), codegen

    return operation


@intrinsic(prefer_literal=True)
def zeros(typing, kind, count):
    """`count` vectors of zeros."""
    result = types.UniTuple(kind.instance_type, count.literal_value)

    def codegen(context, builder, signature, values):
        return ir.Constant(context.get_value_type(result), None)

    return result(kind, count), codegen


@intrinsic(prefer_literal=True)
def splats(typing, kind, count, array, offset):
    """`count` vectors, each broadcasting array[offset + t]."""
    vector = kind.instance_type
    result = types.UniTuple(vector, count.literal_value)

    def codegen(context, builder, signature, values):
        tile = ir.Constant(context.get_value_type(result), ir.Undefined)
        for t, one in enumerate(scalars(context, builder, array, values[2:], result.count)):
            tile = builder.insert_value(tile, broadcast(builder, vector, one), t)
        return tile

    return result(kind, count, array, types.intp), codegen


@lanewise
def add_product(builder, kind, sum_, a, b):
    """sum_ + a * b, rounded once where the machine can."""
    return call_llvm(builder, f"llvm.fmuladd.{suffix(kind)}", kind.ir, [a, b, sum_])


fma_outer = outer(add_product)


@intrinsic
def add_scaled(typing, sums, dots, v, array, offset):
    """The tuple of sums[t] + (v * array[offset + t]) * dots[t], dots being integers."""
    kind = sums.dtype

    def codegen(context, builder, signature, values):
        tile, dots_, v_, *where = values
        for t, one in enumerate(scalars(context, builder, array, where, sums.count)):
            scale = builder.fmul(v_, broadcast(builder, kind, one))
            exact = builder.sitofp(builder.extract_value(dots_, t), kind.ir)
            product = [scale, exact, builder.extract_value(tile, t)]
            total = call_llvm(builder, f"llvm.fmuladd.{suffix(kind)}", kind.ir, product)
            tile = builder.insert_value(tile, total, t)
        return tile

    return sums(sums, dots, v, array, types.intp), codegen


@intrinsic
def add_tiles(typing, totals, dots):
    """The tuple of totals[t] + dots[t], of int32."""

    def codegen(context, builder, signature, values):
        tile, added = values
        for t in range(totals.count):
            total = builder.add(builder.extract_value(tile, t), builder.extract_value(added, t))
            tile = builder.insert_value(tile, total, t)
        return tile

    return totals(totals, dots), codegen


@intrinsic
def add_times(typing, totals, dots, v):
    """The tuple of totals[t] + dots[t] * v, of int32."""

    def codegen(context, builder, signature, values):
        tile = values[0]
        for t in range(totals.count):
            product = builder.mul(builder.extract_value(values[1], t), values[2])
            total = builder.add(builder.extract_value(tile, t), product)
            tile = builder.insert_value(tile, total, t)
        return tile

    return totals(totals, dots, v), codegen


@intrinsic
def add_unit(typing, sums, totals, d, array, offset):
    """The tuple of sums[t] + (totals[t] * d) * array[offset + t], totals being integers."""

    def codegen(context, builder, signature, values):
        return _add_unit(context, builder, signature, values, None)

    return sums(sums, totals, d, array, types.intp), codegen


@intrinsic
def add_unit_with_offset(typing, sums, totals, d, met, m, array, offset):
    """The tuple of sums[t] + (totals[t] * d + met[t] * m) * array[offset + t], totals and met being
    integers."""

    def codegen(context, builder, signature, values):
        tile, totals_, d_, met_, m_, *where = values
        given = [tile, totals_, d_, *where]
        return _add_unit(context, builder, signature, given, (met_, m_))

    return sums(sums, totals, d, met, m, array, types.intp), codegen


def _add_unit(context: Any, builder: Any, signature: Any, values: Any, offset: Any) -> Any:
    tile, totals, d, *where = values
    sums, array = signature.args[0], signature.args[-2]
    kind = sums.dtype

    def add_product(total: Any, a: Any, b: Any) -> Any:
        return call_llvm(builder, f"llvm.fmuladd.{suffix(kind)}", kind.ir, [a, b, total])

    def number(integers: Any, t: int) -> Any:
        return builder.sitofp(builder.extract_value(integers, t), kind.ir)

    for t, one in enumerate(scalars(context, builder, array, where, sums.count)):
        value = builder.fmul(number(totals, t), d)
        if offset:
            met, m = offset
            value = add_product(value, number(met, t), m)
        total = add_product(builder.extract_value(tile, t), value, broadcast(builder, kind, one))
        tile = builder.insert_value(tile, total, t)
    return tile


def _rows(context: Any, builder: Any, out: Any, values: Any, kind: Vector, count: int) -> list[Any]:
    """Pointers to out[token + t, row:] for each t; values are (out, token, row)."""
    array = context.make_array(out)(context, builder, values[0])
    width = builder.extract_value(array.shape, 1)
    place = builder.add(builder.mul(values[1], width), values[2])
    found = []
    for _ in range(count):
        found.append(builder.bitcast(builder.gep(array.data, [place]), kind.ir.as_pointer()))
        place = builder.add(place, width)
    return found


@intrinsic
def load_tile(typing, sums, out, token, row, valid):
    """A tile like `sums` of out[token + t, row : row + valid], further lanes zero."""
    kind = sums.dtype

    def codegen(context, builder, signature, values):
        tile = values[0]
        mask, zero = first_lanes_mask(builder, kind.lanes, values[4]), ir.Constant(kind.ir, None)
        name = f"llvm.masked.load.{suffix(kind)}.p0"
        rows = _rows(context, builder, out, values[1:4], kind, sums.count)
        for t, pointer in enumerate(rows):
            value = call_llvm(builder, name, kind.ir, [pointer, I32(4), mask, zero])
            tile = builder.insert_value(tile, value, t)
        return tile

    return sums(sums, out, types.intp, types.intp, types.intp), codegen


@intrinsic
def store_tile(typing, sums, out, token, row, valid):
    """out[token + t, row : row + valid] = sums[t] for each t. Whole vectors are stored as such:
    AVX2's masked stores take a dozen cycles on AMD's CPUs."""
    kind = sums.dtype

    def codegen(context, builder, signature, values):
        mask = first_lanes_mask(builder, kind.lanes, values[4])
        name = f"llvm.masked.store.{suffix(kind)}.p0"
        rows = _rows(context, builder, out, values[1:4], kind, sums.count)
        vectors = [builder.extract_value(values[0], t) for t in range(sums.count)]
        whole = builder.icmp_signed(">=", values[4], values[4].type(kind.lanes))
        with builder.if_else(whole) as (entirely, partly):
            with entirely:
                for pointer, value in zip(rows, vectors, strict=True):
                    builder.store(value, pointer).align = 4
            with partly:
                for pointer, value in zip(rows, vectors, strict=True):
                    call_llvm(builder, name, ir.VoidType(), [value, pointer, I32(4), mask])
        return context.get_dummy_value()

    return types.void(sums, out, types.intp, types.intp, types.intp), codegen


def in_tiles(make: Callable[[int], Any], sizes: Sequence[int]) -> Any:
    """A function of (first, count, arguments) that runs make(size)(token, arguments) over tokens
    first to count: tiles of the largest size that fits, then smaller ones. The last size is 1."""
    if not sizes:

        @njit(inline="always")
        def nothing(first, count, arguments):
            pass

        return nothing

    size, tile, rest = sizes[0], make(sizes[0]), in_tiles(make, sizes[1:])

    @njit(inline="always")  # or LLVM would optimise the smaller sizes again for every larger one
    def run(first, count, arguments):
        while first + size <= count:
            tile(first, arguments)
            first += size
        rest(first, count, arguments)

    return run
