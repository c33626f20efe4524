"""Rows of a KV cache, sixteen elements at a time, as float32."""

from numba import int64
from numba.extending import overload

from kernels.cpu.isa.bits import half_at
from kernels.cpu.isa.simd import (
    Vector,
    convert,
    f16x16,
    f32x16,
    high_nibbles,
    load,
    low_nibbles,
    mul,
    splat,
    sub,
)
from kernels.cpu.isa.simd_shuffle import transpose_quarters
from kernels.cpu.runtime.closures import inlined
from reference.formats import FORMATS

i8x16 = Vector("i8", 16)


def sixteen(tag, data, base, d):
    """f32x16: elements d to d + 15 of the row whose bytes begin at data[base], exact."""
    raise NotImplementedError("known to compiled code only")


@overload(sixteen)
def _sixteen(tag, data, base, d):
    def f32(tag, data, base, d):
        return load(f32x16, data, base + 4 * d)

    def f16(tag, data, base, d):
        return convert(f32x16, load(f16x16, data, base + 2 * d))

    def q8_0(tag, data, base, d):
        block = base + d // 32 * 34
        q = convert(f32x16, load(i8x16, data, block + 2 + d % 32))
        return mul(q, splat(f32x16, half_at(data, block)))

    def q4_0(tag, data, base, d):
        block = base + d // 32 * 18
        both = load(i8x16, data, block + 2)
        q = convert(f32x16, high_nibbles(both) if d % 32 else low_nibbles(both))
        return mul(sub(q, splat(f32x16, 8.0)), splat(f32x16, half_at(data, block)))

    kinds = {"F32": f32, "F16": f16, "Q8_0": q8_0, "Q4_0": q4_0}
    return kinds[tag.instance_type.format]


def start_of(tag, d):
    """The byte of a row at which the block of element d begins, or the element itself."""
    raise NotImplementedError("known to compiled code only")


@overload(start_of, inline="always")
def _start_of(tag, d):
    layout = FORMATS[tag.instance_type.format]
    elements, size = layout.block, layout.block_bytes

    def start(tag, d):
        return d // elements * size

    return start


def line_begins(tag, d):
    """Whether a cache line may begin within these sixteen elements."""
    raise NotImplementedError("known to compiled code only")


@overload(line_begins, inline="always")
def _line_begins(tag, d):
    step = 16 if tag.instance_type.format == "F32" else 32

    def begins(tag, d):
        return d % step == 0

    return begins


@inlined
def four_rows(tag, data, bases, first, d):
    """Elements d to d + 15 of rows bases[first:first + 4], their 4x4 squares transposed."""
    return transpose_quarters(
        sixteen(tag, data, load(int64, bases, first), d),
        sixteen(tag, data, load(int64, bases, first + 1), d),
        sixteen(tag, data, load(int64, bases, first + 2), d),
        sixteen(tag, data, load(int64, bases, first + 3), d),
    )
