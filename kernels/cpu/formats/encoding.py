"""Weight formats inside compiled code: rows encoded by tag, bit for bit as the reference does."""

import math
from typing import Any

import numpy as np
from numba import njit
from numba.extending import overload

from kernels.cpu.formats.encoders import encoder, nibbles
from kernels.cpu.isa.bits import pack, put_half
from kernels.cpu.isa.simd import bf16x1, convert, f32x1, splat, store
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.runtime.closures import inner
from reference.formats import FORMATS
from reference.formats.codebooks import FP4
from reference.formats.format import NO_INVERSE

ZERO = np.float32(0)


@njit(inline="always")
def inverse(d):
    return np.float32(1) / d if abs(d) > NO_INVERSE else ZERO


@njit(inline="always")
def away(x):
    """Rounded half away from zero."""
    return np.int32(x + math.copysign(np.float32(0.5), x))


@inner
def largest_magnitude(x):
    largest = ZERO
    for value in x:
        largest = max(largest, abs(value))
    return largest


@inner
def from_extreme(x, half, q):
    """The scale that maps the value of largest magnitude, the first if there are several, to -half;
    integers plus half."""
    peak = x[0]
    for value in x:
        if abs(value) > abs(peak):
            peak = value
    d = peak / np.float32(-half)
    each = inverse(d)
    for j in range(len(x)):
        q[j] = min(np.int32(2 * half - 1), np.int32(x[j] * each + np.float32(half + 0.5)))
    return d


@inner
def from_range(x, top, q):
    """The scale and minimum that map a block's range to 0 .. top, and its integers."""
    low, high = x[0], x[0]
    for value in x:
        low, high = min(low, value), max(high, value)
    d = (high - low) / np.float32(top)
    each = inverse(d)
    for j in range(len(x)):
        q[j] = min(np.int32(top), np.int32((x[j] - low) * each + np.float32(0.5)))
    return d + ZERO, low + ZERO  # of two zeros the positive one


# One block of each block format: x float32 [block] to data uint8 [block_bytes], by way of q.


def by_scale(half: int, fifths: int = 0) -> Any:
    put_codes = nibbles(2, 16, fifths)

    @inner
    def put(x, data, q):
        put_half(data, 0, from_extreme(x, half, q))
        put_codes(data, q)

    return put


def by_scale_and_minimum(top: int, fifths: int = 0) -> Any:
    put_codes = nibbles(4, 16, fifths)

    @inner
    def put(x, data, q):
        d, m = from_range(x, top, q)
        put_half(data, 0, d)
        put_half(data, 2, m)
        put_codes(data, q)

    return put


@inner
def q8_0(x, data, q):
    largest = largest_magnitude(x)
    d = largest / np.float32(127)
    each = inverse(d)
    put_half(data, 0, d)
    for j in range(32):
        data[2 + j] = away(x[j] * each) & 255


@inner
def mxfp4(x, data, q):
    largest = largest_magnitude(x)
    e = min(max(math.frexp(largest)[1] - 1 - 2 + 127, 0), 254) if largest > ZERO else 0
    scale = np.float32(math.ldexp(1.0, e - 128))
    for j in range(32):
        best = np.float32(np.inf)
        for i in range(16):
            off = abs(scale * np.float32(FP4[i]) - x[j])
            if off < best:
                best, q[j] = off, i
    data[0] = e
    pack(data, 1, q, 0, 4, 16)


@inner
def trits(x, q):
    """The scale, and the nearest of -1, 0 and 1, plus 1."""
    largest = largest_magnitude(x)
    each = inverse(largest)
    for j in range(len(x)):
        q[j] = away(x[j] * each) + 1
    return largest


@inner
def put_base_3(data, first, begin, end, run, q):
    """Write elements begin to end as base-3 numbers of up to five digits, one byte each, from
    data[first]."""
    digits = min(5, (end - begin) // run)
    for i in range((end - begin) // digits):
        number = 0
        for k in range(5):
            number *= 3
            if k < digits:
                number += q[begin + i // run * run * digits + k * run + i % run]
        data[first + i] = (number * 256 + 242) // 243


@inner
def tq1_0(x, data, q):
    put_half(data, 52, trits(x, q))
    put_base_3(data, 0, 0, 160, 32, q)
    put_base_3(data, 32, 160, 240, 16, q)
    put_base_3(data, 48, 240, 256, 4, q)


@inner
def tq2_0(x, data, q):
    put_half(data, 64, trits(x, q))
    pack(data, 0, q, 0, 2, 32)


BLOCKS = {
    "Q4_0": by_scale(8), "Q4_1": by_scale_and_minimum(15), "Q5_0": by_scale(16, 1),
    "Q5_1": by_scale_and_minimum(31, 1), "Q8_0": q8_0, "MXFP4": mxfp4, "TQ1_0": tq1_0,
    "TQ2_0": tq2_0,
}  # fmt: skip


def encode(tag, x, data):
    """Encode the row of float32 `x` to the row of bytes `data`."""
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

    name = tag.instance_type.format
    if name in (floats := {"F32": f32, "F16": f16, "BF16": bf16}):
        return floats[name]
    if name not in BLOCKS:
        fitted = encoder(name, weighted=False)

        def parts(tag, x, data):
            fitted(x, x, data)

        return parts
    block, elements, size = BLOCKS[name], FORMATS[name].block, FORMATS[name].block_bytes

    def blocks(tag, x, data):
        q = stack(np.int32, elements)
        for b in range(len(x) // elements):
            block(x[elements * b : elements * (b + 1)], data[size * b : size * (b + 1)], q)

    return blocks


def encode_weighted(tag, x, importance, data):
    """The same with weights of elements, importance float32 [elements]."""
    raise NotImplementedError("known to compiled code only")


@overload(encode_weighted)
def _encode_weighted(tag, x, importance, data):
    weighted = encoder(tag.instance_type.format, weighted=True)

    def parts(tag, x, importance, data):
        weighted(x, importance, data)

    return parts
