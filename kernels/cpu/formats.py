"""Weight formats inside compiled code: one tag a format, and elements decoded and encoded by tag.

`element` serves every kernel that reads the file's own layout one element at a time; kernels that
must be fast stream packed layouts of their own.
"""

import math

import numpy as np
from numba import njit, types
from numba.extending import models, overload, register_model

from kernels.cpu.simd import bf16x1, convert, extract, f16x1, f32x1, load, splat, store


class FormatTag(types.Type):
    """A weight format as a compile-time argument."""

    def __init__(self, format: str) -> None:
        super().__init__(name=f"format.{format}")


register_model(FormatTag)(models.OpaqueModel)

TAGS = {name: FormatTag(name) for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0")}


@njit(inline="always")
def half_at(data, offset):
    """The float16 at a byte offset, as float32."""
    return extract(convert(f32x1, load(f16x1, data, offset)), 0)


@njit(inline="always")
def put_half(data, offset, value):
    """float32 to float16, nearest even, at a byte offset."""
    store(data, offset, convert(f16x1, splat(f32x1, value)))


def element(tag, data, i):
    """Element i of the row of bytes `data`, as float32."""
    raise NotImplementedError("known to compiled code only")


@overload(element, inline="always")
def _element(tag, data, i):
    def f32(tag, data, i):
        return extract(load(f32x1, data, 4 * i), 0)

    def f16(tag, data, i):
        return half_at(data, 2 * i)

    def bf16(tag, data, i):
        return extract(convert(f32x1, load(bf16x1, data, 2 * i)), 0)

    def q8_0(tag, data, i):
        base = i // 32 * 34
        return half_at(data, base) * np.float32(np.int8(data[base + 2 + i % 32]))

    def q4_0(tag, data, i):
        base, j = i // 32 * 18, i % 32
        q = np.int32(data[base + 2 + j % 16]) >> (4 * (j // 16)) & 15
        return half_at(data, base) * np.float32(q - 8)

    kinds = {"F32": f32, "F16": f16, "BF16": bf16, "Q8_0": q8_0, "Q4_0": q4_0}
    return kinds[tag.instance_type.name.removeprefix("format.")]


def encode(tag, x, data):
    """Write the row of float32 `x` as the row of bytes `data`."""
    raise NotImplementedError("known to compiled code only")


@overload(encode)
def _encode(tag, x, data):
    def f32(tag, x, data):
        for i in range(len(x)):
            store(data, 4 * i, splat(f32x1, x[i]))

    def f16(tag, x, data):
        for i in range(len(x)):
            put_half(data, 2 * i, x[i])

    def bf16(tag, x, data):
        for i in range(len(x)):
            store(data, 2 * i, convert(bf16x1, splat(f32x1, x[i])))

    def q8_0(tag, x, data):
        for b in range(len(x) // 32):
            values, block = x[32 * b : 32 * b + 32], data[34 * b : 34 * b + 34]
            largest = np.float32(0)
            for j in range(32):
                largest = max(largest, abs(values[j]))
            d = largest / np.float32(127)
            inverse = np.float32(0) if d == 0 else np.float32(1) / d
            put_half(block, 0, d)
            for j in range(32):
                scaled = values[j] * inverse
                block[2 + j] = np.int32(scaled + math.copysign(np.float32(0.5), scaled)) & 255

    def q4_0(tag, x, data):
        for b in range(len(x) // 32):
            values, block = x[32 * b : 32 * b + 32], data[18 * b : 18 * b + 18]
            extreme = np.float32(0)
            for j in range(32):
                if abs(values[j]) > abs(extreme):
                    extreme = values[j]
            d = extreme / np.float32(-8)
            inverse = np.float32(0) if d == 0 else np.float32(1) / d
            put_half(block, 0, d)
            for j in range(16):
                low = np.int32(values[j] * inverse + np.float32(8.5))
                high = np.int32(values[j + 16] * inverse + np.float32(8.5))
                block[2 + j] = min(np.int32(15), low) + 16 * min(np.int32(15), high)

    kinds = {"F32": f32, "F16": f16, "BF16": bf16, "Q8_0": q8_0, "Q4_0": q4_0}
    return kinds[tag.instance_type.name.removeprefix("format.")]
