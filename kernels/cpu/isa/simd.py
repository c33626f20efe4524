"""Vectors for Numba: types such as f32x16 and intrinsics on them, in portable LLVM vector IR.

LLVM lowers each to whatever the machine has: one AVX-512 register, two of AVX2, four of NEON.
Offsets count elements of the array they index, so bytes for a uint8 array. Loads and stores need
no alignment. Nothing is checked: the caller's loop bounds are the contract.
"""

from collections.abc import Sequence
from functools import partial
from inspect import signature
from typing import Any, cast

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from kernels.provenance import cpu_features

I32 = ir.IntType(32)
CACHE_LINE = 64  # bytes of a vector register, and of the widest
ELEMENTS: dict[str, ir.Type] = {
    "f32": ir.FloatType(), "f16": ir.HalfType(), "bf16": ir.IntType(16),
    "i1": ir.IntType(1), "i8": ir.IntType(8), "i16": ir.IntType(16), "u16": ir.IntType(16),
    "i32": I32,
}  # fmt: skip
WIDTHS = {  # in bits
    "f32": 32, "f16": 16, "bf16": 16, "i1": 1, "i8": 8, "i16": 16, "u16": 16, "i32": 32,
}  # fmt: skip


class Vector(types.Type):
    """`lanes` elements of one kind, held in registers."""

    def __init__(self, element: str, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(name=f"{element}x{lanes}")

    @property
    def ir(self) -> ir.Type:
        return ir.VectorType(ELEMENTS[self.element], self.lanes)

    @property
    def bits(self) -> int:
        return self.lanes * WIDTHS[self.element]

    def of(self, element: str) -> "Vector":
        return Vector(element, self.lanes)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, vector.ir)


f32x16, f16x16, bf16x16, i32x16 = (Vector(e, 16) for e in ("f32", "f16", "bf16", "i32"))
i32x8, i8x64, i16x32 = Vector("i32", 8), Vector("i8", 64), Vector("i16", 32)
bf16x32, i8x32 = Vector("bf16", 32), Vector("i8", 32)
i8x16, u16x16 = Vector("i8", 16), Vector("u16", 16)
f32x1, f16x1, bf16x1 = (Vector(e, 1) for e in ("f32", "f16", "bf16"))


def call_llvm(builder: Any, name: str, result: ir.Type, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def suffix(vector: Vector) -> str:
    return f"v{vector.lanes}{vector.element}"


def address_of(context: Any, builder: Any, array: Any, values: Any, pointee: ir.Type) -> Any:
    """A pointer to `pointee` at element values[1] of the array values[0]."""
    data = context.make_array(array)(context, builder, values[0]).data
    return builder.bitcast(builder.gep(data, [values[1]]), pointee.as_pointer())


def loading(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    """The pointer of an intrinsic's (argument, offset, type): so many elements beyond the index
    that follows the argument, an array."""

    def loaded(argument: int, beyond: int, of: ir.Type) -> Any:
        array, place = values[argument : argument + 2]
        place = builder.add(place, place.type(beyond))
        pointer = address_of(context, builder, signature.args[argument], (array, place), of)
        value = builder.load(pointer)
        value.align = 1
        return value

    return loaded


def constant(kind: ir.VectorType, value: Any) -> ir.Constant:
    """A vector with all elements the same."""
    return ir.Constant(kind, [value] * kind.count)


def broadcast(builder: Any, vector: Vector, scalar: Any) -> Any:
    undefined = ir.Constant(vector.ir, ir.Undefined)
    one = builder.insert_element(undefined, scalar, I32(0))
    zeros = ir.Constant(ir.VectorType(I32, vector.lanes), None)
    return builder.shuffle_vector(one, undefined, zeros)


def shuffle(builder: Any, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    """These lanes of the concatenation of a and b."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(I32, len(lanes)), [*lanes]))


@intrinsic
def load(typing, kind, array, offset):
    """The vector (or scalar) of type `kind` at array[offset:]."""
    result = kind.instance_type

    def codegen(context, builder, signature, values):
        pointee = context.get_value_type(result)
        value = builder.load(address_of(context, builder, signature.args[1], values[1:], pointee))
        value.align = 1
        return value

    return result(kind, array, types.intp), codegen


@intrinsic
def store(typing, array, offset, value):
    """array[offset:] = value, all its lanes."""

    def codegen(context, builder, signature, values):
        pointer = address_of(context, builder, signature.args[0], values, values[2].type)
        builder.store(values[2], pointer).align = 1
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


def first_lanes_mask(builder: Any, lanes: int, count: Any) -> Any:
    """The mask of the first `count` lanes."""
    index = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
    limit = broadcast(builder, Vector("i32", lanes), builder.trunc(count, I32))
    return builder.icmp_signed("<", index, limit)


@intrinsic
def load_first(typing, kind, array, offset, count):
    """The first `count` lanes at array[offset:], the rest zero; memory beyond is not touched."""
    result = kind.instance_type

    def codegen(context, builder, signature, values):
        pointer = address_of(context, builder, signature.args[1], values[1:], result.ir)
        mask = first_lanes_mask(builder, result.lanes, values[3])
        zero = ir.Constant(result.ir, None)
        name = f"llvm.masked.load.{suffix(result)}.p0"
        return call_llvm(builder, name, result.ir, [pointer, I32(1), mask, zero])

    return result(kind, array, types.intp, types.intp), codegen


@intrinsic
def store_first(typing, array, offset, value, count):
    """The first `count` lanes to array[offset:]; memory beyond is not touched."""

    def codegen(context, builder, signature, values):
        pointer = address_of(context, builder, signature.args[0], values, value.ir)
        mask = first_lanes_mask(builder, value.lanes, values[3])
        name = f"llvm.masked.store.{suffix(value)}.p0"
        call_llvm(builder, name, ir.VoidType(), [values[2], pointer, I32(1), mask])
        return context.get_dummy_value()

    return types.void(array, types.intp, value, types.intp), codegen


@intrinsic(prefer_literal=True)
def prefetch(typing, array, offset, locality):
    """Prefetch the cache line at array[offset:], which may lie beyond the array's end; `locality`
    is a literal from 0 (used once) to 3 (keep in every cache)."""

    def codegen(context, builder, signature, values):
        pointer = address_of(context, builder, signature.args[0], values, ir.IntType(8))
        operands = [pointer, I32(0), I32(locality.literal_value), I32(1)]
        call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), operands)
        return context.get_dummy_value()

    return types.void(array, types.intp, locality), codegen


@intrinsic
def prefetch_to_write(typing, array, index):
    """Prefetch the cache line of array[index], an element of any array, for writing."""

    def codegen(context, builder, signature, values):
        pointer = address_of(context, builder, signature.args[0], values, ir.IntType(8))
        call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, I32(1), I32(3), I32(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def splat(typing, kind, scalar):
    """Broadcast a scalar to every lane; of a byte lane its lowest byte."""
    result = kind.instance_type
    element = types.float32 if result.element == "f32" else types.int32

    def codegen(context, builder, signature, values):
        scalar = values[1]
        if result.element == "i8":
            scalar = builder.trunc(scalar, result.ir.element)
        return broadcast(builder, result, scalar)

    return result(kind, element), codegen


@intrinsic
def splat_half(typing, kind, array, offset):
    """Broadcast the float16 at array[offset:]."""
    result = kind.instance_type

    def codegen(context, builder, signature, values):
        half = ir.HalfType()
        one = builder.load(address_of(context, builder, array, values[1:], half))
        one.align = 1
        halves = Vector("f16", result.lanes)
        return widened(builder, halves, broadcast(builder, halves, one))

    return result(kind, array, types.intp), codegen


@intrinsic
def zero(typing, kind):
    """Every lane zero."""
    result = kind.instance_type

    def codegen(context, builder, signature, values):
        return ir.Constant(result.ir, None)

    return result(kind), codegen


def lanewise(code: Any) -> Any:
    """An intrinsic of vectors of one type, like its result, generated by code(builder, type,
    *values)."""

    def operation(typing, first, *others):
        def codegen(context, builder, signature, values):
            return code(builder, first, *values)

        return first(first, *(first for _ in others)), codegen

    operation.__doc__, operation.__name__ = code.__doc__, code.__name__
    made, named = (
        cast(Any, operation),
        signature(code),
    )  # the name by which Numba distinguishes arguments
    made.__signature__ = named.replace(parameters=[*named.parameters.values()][1:])
    return intrinsic(made)


@lanewise
def mul(builder, kind, a, b):
    """a * b, of floats."""
    return builder.fmul(a, b)


@lanewise
def add(builder, kind, a, b):
    """a + b, of floats."""
    return builder.fadd(a, b)


@lanewise
def sub(builder, kind, a, b):
    """a - b, of floats."""
    return builder.fsub(a, b)


@lanewise
def div(builder, kind, a, b):
    """a / b, of floats."""
    return builder.fdiv(a, b)


@lanewise
def fma(builder, kind, a, b, c):
    """a * b + c, rounded once where the machine can."""
    return call_llvm(builder, f"llvm.fmuladd.{suffix(kind)}", kind.ir, [a, b, c])


def polynomial(*coefficients: float) -> Any:
    """An intrinsic of x: the polynomial with these coefficients, the highest power's first, as a
    chain of `fma`."""

    @lanewise
    def value(builder, kind, x):
        total = constant(kind.ir, coefficients[0])
        for coefficient in coefficients[1:]:
            operands = [total, x, constant(kind.ir, coefficient)]
            total = call_llvm(builder, f"llvm.fmuladd.{suffix(kind)}", kind.ir, operands)
        return total

    return value


@lanewise
def maximum(builder, kind, a, b):
    """The larger of a and b, lane by lane; b where either is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@lanewise
def minimum(builder, kind, a, b):
    """The smaller of a and b, lane by lane; b where either is NaN."""
    return builder.select(builder.fcmp_ordered("<", a, b), a, b)


@lanewise
def reverse(builder, kind, v):
    """Lanes in reverse order."""
    return shuffle(builder, v, v, range(kind.lanes)[::-1])


@lanewise
def round_even(builder, kind, v):
    """Round to the nearest integers, halves to even, still as floats."""
    return call_llvm(builder, f"llvm.rint.{suffix(kind)}", kind.ir, [v])


@intrinsic
def where_above(typing, v, limit, value):
    """Each lane's value where v is above the limit, else 0; all are float vectors."""

    def codegen(context, builder, signature, values):
        above = builder.fcmp_ordered(">", values[0], values[1])
        return builder.select(above, values[2], ir.Constant(v.ir, None))

    return value(v, limit, value), codegen


@intrinsic
def where_less(typing, a, b, value, other):
    """Each lane's value where a < b, of integers, else the other."""

    def codegen(context, builder, signature, values):
        return builder.select(builder.icmp_signed("<", *values[:2]), *values[2:])

    return value(a, b, value, other), codegen


@intrinsic
def finite_or_zero(typing, v):
    """Each lane, or zero where it is infinite or NaN; and whether all were finite."""

    def codegen(context, builder, signature, values):
        zeros = ir.Constant(v.ir, None)
        finite = builder.fcmp_ordered("==", builder.fsub(values[0], values[0]), zeros)
        kept = builder.select(finite, values[0], zeros)
        bits = builder.bitcast(finite, ir.IntType(v.lanes))
        every = builder.icmp_unsigned("==", bits, ir.Constant(bits.type, -1))
        return context.make_tuple(builder, signature.return_type, [kept, every])

    return types.Tuple((v, types.boolean))(v), codegen


@intrinsic
def nonzero(typing, array, offset):
    """A bit for each of the 64 bytes at array[offset:], set where it is not zero."""

    def codegen(context, builder, signature, values):
        kind = ir.VectorType(ir.IntType(8), 64)
        pointer = address_of(context, builder, array, values, kind)
        bytes_ = builder.load(pointer)
        bytes_.align = 1
        found = builder.icmp_unsigned("!=", bytes_, ir.Constant(kind, [0] * 64))
        return builder.bitcast(found, ir.IntType(64))

    return types.uint64(array, types.intp), codegen


@intrinsic
def lowest_bit(typing, bits):
    """The index of the lowest set bit; there must be one."""

    def codegen(context, builder, signature, values):
        return builder.cttz(values[0], ir.IntType(1)(1))

    return types.int64(types.uint64), codegen


@lanewise
def low_nibbles(builder, kind, v):
    """Each byte's low four bits."""
    return builder.and_(v, constant(kind.ir, 15))


@lanewise
def high_nibbles(builder, kind, v):
    """Each byte's high four bits."""
    return builder.lshr(v, constant(kind.ir, 4))


@intrinsic
def even_bytes(typing, v):
    """Bytes 0, 2, 4, ... as unsigned numbers, i16 lanes."""
    wide = Vector("i16", v.lanes // 2)

    def codegen(context, builder, signature, values):
        return builder.and_(builder.bitcast(values[0], wide.ir), constant(wide.ir, 255))

    return wide(v), codegen


@intrinsic
def odd_bytes(typing, v):
    """Bytes 1, 3, 5, ... as unsigned numbers, i16 lanes."""
    wide = Vector("i16", v.lanes // 2)

    def codegen(context, builder, signature, values):
        return builder.lshr(builder.bitcast(values[0], wide.ir), constant(wide.ir, 8))

    return wide(v), codegen


@intrinsic
def dot_pairs(typing, sums, a, b):
    """sums + a[2i] b[2i] + a[2i + 1] b[2i + 1], of i16 into i32 (x86's vpmaddwd, NEON's smull)."""

    def codegen(context, builder, signature, values):
        wide = ir.VectorType(I32, a.lanes)
        products = builder.mul(*(builder.sext(v, wide) for v in values[1:]))
        halves = range(0, a.lanes, 2), range(1, a.lanes, 2)
        even, odd = (shuffle(builder, products, products, half) for half in halves)
        return builder.add(values[0], builder.add(even, odd))

    return sums(sums, a, b), codegen


def byte_products(zero_point: int, sign: int, split: bool) -> Any:
    """An intrinsic of (codes, integers): each unsigned byte, less the zero point, times its pair's
    integer of 16 bits and the sign, as int8: a vector of bytes or, if products of 16 bits are
    `split` to 128 high + low, one of each."""

    @intrinsic
    def products(typing, codes, integers):
        wide, result = integers.ir, types.UniTuple(codes, 1 + split)

        def codegen(context, builder, signature, values):
            bytes_ = builder.bitcast(values[0], wide)
            factor = builder.neg(values[1]) if sign < 0 else values[1]

            def product(code):
                return builder.mul(builder.sub(code, constant(wide, zero_point)), factor)

            def merged(even, odd):
                even, odd = builder.and_(even, constant(wide, 255)), builder.shl(odd, eight)
                return builder.bitcast(builder.or_(even, odd), codes.ir)

            eight, low, bits = (constant(wide, number) for number in (8, 127, 7))
            even = product(builder.and_(bytes_, constant(wide, 255)))
            odd = product(builder.lshr(bytes_, eight))
            if not split:
                return context.make_tuple(builder, result, [merged(even, odd)])
            high = merged(builder.ashr(even, bits), builder.ashr(odd, bits))
            rest = merged(builder.and_(even, low), builder.and_(odd, low))
            return context.make_tuple(builder, result, [high, rest])

        return result(codes, integers), codegen

    return products


@lanewise
def less(builder, kind, a, b):
    """a - b, of integers."""
    return builder.sub(a, b)


@intrinsic
def in_pairs(typing, a, b):
    """Two vectors of int32, each within int16, interleaved as pairs of i16: a's in the lower half
    of a word."""
    halves = Vector("i16", 2 * a.lanes)

    def codegen(context, builder, signature, values):
        low = builder.and_(values[0], constant(a.ir, 0xFFFF))
        words = builder.or_(low, builder.shl(values[1], constant(a.ir, 16)))
        return builder.bitcast(words, halves.ir)

    return halves(a, a), codegen


@intrinsic
def two_bits(typing, v, shift):
    """The two bits from `shift` of each word, as a float."""

    def codegen(context, builder, signature, values):
        moved = broadcast(builder, v, builder.trunc(values[1], I32))
        code = builder.and_(builder.lshr(values[0], moved), constant(v.ir, 3))
        return builder.sitofp(code, v.of("f32").ir)

    return v.of("f32")(v, types.intp), codegen


def _has_half_conversion() -> bool:
    """Whether float16 widens in hardware; x86-64 without F16C would call a missing function."""
    x86 = llvm.get_process_triple().startswith("x86")
    return not x86 or "f16c" in cpu_features()


def _widen_half(builder: Any, value: Any, lanes: int) -> Any:
    """float16 to float32 by integer arithmetic: shift into place, then rescale the exponent."""
    i32, f32 = ir.VectorType(I32, lanes), ir.VectorType(ir.FloatType(), lanes)
    all_ = partial(constant, i32)
    bits = builder.zext(builder.bitcast(value, ir.VectorType(ir.IntType(16), lanes)), i32)
    magnitude = builder.shl(builder.and_(bits, all_(0x7FFF)), all_(13))
    rescale = builder.bitcast(all_(0x77800000), f32)  # 2^112
    scaled = builder.bitcast(builder.fmul(builder.bitcast(magnitude, f32), rescale), i32)
    special = builder.icmp_unsigned(">=", magnitude, all_(0x0F800000))
    scaled = builder.select(special, builder.or_(magnitude, all_(0x7F800000)), scaled)
    sign = builder.shl(builder.and_(bits, all_(0x8000)), all_(16))
    return builder.bitcast(builder.or_(scaled, sign), f32)


def narrow_to_bf16(builder: Any, value: Any, lanes: int) -> Any:
    """float32 to bfloat16, nearest even, by integer arithmetic; a NaN stays one, made quiet."""
    all_ = partial(constant, ir.VectorType(I32, lanes))
    bits = builder.bitcast(value, all_(0).type)
    odd = builder.and_(builder.lshr(bits, all_(16)), all_(1))
    rounded = builder.add(builder.add(bits, odd), all_(0x7FFF))
    quiet = builder.or_(bits, all_(0x400000))
    kept = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    half = ir.VectorType(ELEMENTS["bf16"], lanes)
    return builder.trunc(builder.lshr(kept, all_(16)), half)


def widened(builder: Any, kind: Vector, value: Any) -> Any:
    """Floats of any kind as float32."""
    wide = Vector("f32", kind.lanes)
    match kind.element:
        case "f16" if _has_half_conversion():
            return builder.fpext(value, wide.ir)
        case "f16":
            return _widen_half(builder, value, kind.lanes)
        case "bf16":
            bits = builder.zext(value, ir.VectorType(I32, kind.lanes))
            return builder.bitcast(builder.shl(bits, constant(bits.type, 16)), wide.ir)
        case _:
            return value


@intrinsic
def convert(typing, kind, v):
    """Lanes of one element type as another: f16, bf16, i8, u16, i32 to f32 (exact where it fits);
    f32 to f16 and bf16 (nearest even, subnormals kept) and to i32 (toward zero); i8 to i32; i32 to
    i8 (the low byte)."""
    result = kind.instance_type if isinstance(kind.instance_type, Vector) else v.of("f32")

    def codegen(context, builder, signature, values):
        value, target = values[1], result.ir
        match v.element, result.element:
            case (("i8" | "i32"), "f32"):
                return builder.sitofp(value, target)
            case "u16", "f32":
                return builder.uitofp(value, target)
            case (("f16" | "bf16" | "f32"), "f32"):
                return widened(builder, v, value)
            case "f32", "f16":
                return builder.fptrunc(value, target)
            case "f32", "bf16":
                return narrow_to_bf16(builder, value, v.lanes)
            case "f32", "i32":
                return builder.fptosi(value, target)
            case "i8", "i32":
                return builder.sext(value, target)
            case "i32", "i8":
                return builder.trunc(value, target)
        raise TypeError(f"no conversion from {v} to {result}")

    return result(kind, v), codegen


@intrinsic
def of_upper_bits(typing, v):
    """Each byte as the eight bits after the sign of a float16 whose other bits are zero, as f32."""

    def codegen(context, builder, signature, values):
        halves = v.of("f16")
        words = builder.zext(values[0], v.of("i16").ir)
        bits = builder.shl(words, constant(words.type, 7))
        return widened(builder, halves, builder.bitcast(bits, halves.ir))

    return v.of("f32")(v), codegen


@intrinsic
def extract(typing, v, lane):
    """One lane of a float vector as a scalar."""

    def codegen(context, builder, signature, values):
        return builder.extract_element(values[0], values[1])

    return types.float32(v, types.intp), codegen


@intrinsic
def insert(typing, v, lane, scalar):
    """The vector with one lane replaced."""

    def codegen(context, builder, signature, values):
        return builder.insert_element(values[0], values[2], values[1])

    return v(v, types.intp, types.float32), codegen


def _reduction(name: str, combine: Any, doc: str) -> Any:
    """A reduction of lanes in halves: the order is fixed, so the result is the same everywhere."""

    def operation(typing, v):
        def codegen(context, builder, signature, values):
            value, lanes = values[0], v.lanes
            while lanes > 1:
                lanes //= 2
                low = shuffle(builder, value, value, range(lanes))
                high = shuffle(builder, value, value, range(lanes, 2 * lanes))
                value = combine(builder, low, high)
            return builder.extract_element(value, I32(0))

        return types.float32(v), codegen

    operation.__doc__, operation.__name__ = doc, name
    return intrinsic(operation)


sum_lanes = _reduction("sum_lanes", lambda b, x, y: b.fadd(x, y), "The sum of all lanes.")
max_lanes = _reduction(
    "max_lanes",
    lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y),
    "The largest lane; NaN lanes may be passed over.",
)
