"""Weight formats inside compiled code: rows encoded by tag, bit for bit as the reference does."""

import math

import numpy as np
from numba import njit
from numba.extending import overload

from kernels.cpu.fields import put_half
from kernels.cpu.fit import (
    TARGETS,
    ZERO,
    affine,
    codebook,
    extreme,
    halved,
    index,
    inverse,
    loss,
    nearest,
    root_mean_square,
    symmetric,
    weight_of,
)
from kernels.cpu.simd import bf16x1, convert, f32x1, splat, store
from kernels.cpu.simd_shuffle import stack
from reference.formats import FORMATS
from reference.formats.codebooks import FP4, NL
from reference.formats.superblocks import AFFINE

STEPS = (0, -1, 1)
TOPS = {
    name: np.array([fit.top + t for t in fit.tries], np.float32) for name, fit in AFFINE.items()
}


@njit(inline="always")
def away(x):
    """Rounded half away from zero."""
    return np.int32(x + math.copysign(np.float32(0.5), x))


@njit(inline="always")
def pack(data, base, q, bits, run):
    """Lay fields side by side from data[base] on (`pack` of reference/formats/bits.py); of a field
    only its low bits count."""
    per_byte = 8 // bits
    span = run * per_byte
    for byte in range(len(q) // per_byte):
        first, total = byte // run * span + byte % run, 0
        for k in range(per_byte):
            total |= (np.int32(q[first + k * run]) & ((1 << bits) - 1)) << (k * bits)
        data[base + byte] = total


@njit
def largest_magnitude(x):
    largest = ZERO
    for value in x:
        largest = max(largest, abs(value))
    return largest


@njit
def from_extreme(x, half, q):
    """The scale that takes the value of largest magnitude to -half; integers raised by half."""
    d = extreme(x) / np.float32(-half)
    each = inverse(d)
    for j in range(len(x)):
        q[j] = min(np.int32(2 * half - 1), np.int32(x[j] * each + np.float32(half + 0.5)))
    return d


@njit
def from_range(x, top, q):
    """The scale and minimum that take a block's range to 0 .. top, and its integers."""
    low, high = x[0], x[0]
    for value in x:
        low, high = min(low, value), max(high, value)
    d = (high - low) / np.float32(top)
    each = inverse(d)
    for j in range(len(x)):
        q[j] = min(np.int32(top), np.int32((x[j] - low) * each + np.float32(0.5)))
    return d, low


@njit
def symmetric_parts(x, parts, half, most, targets, data, at, scales, q):
    """d to data[at:], the parts' integer scales, and integers in [-half, half)."""
    size = len(x) // parts
    fitted = stack(np.float32, 16)
    for p in range(parts):
        fitted[p] = symmetric(x[p * size : (p + 1) * size], targets, half)
    d = halved(data, at, extreme(fitted[:parts]) / np.float32(-most))
    each = inverse(d)
    for p in range(parts):
        part, best = x[p * size : (p + 1) * size], np.float32(np.inf)
        first = nearest(fitted[p] * each, -most, most - 1)
        scales[p] = np.int32(first)
        for step in STEPS:
            trial = min(max(first + np.float32(step), np.float32(-most)), np.float32(most - 1))
            scale, error = d * trial, ZERO
            rate = inverse(scale)
            for value in part:
                off = scale * nearest(value * rate, -half, half - 1) - value
                error += value * value * off * off
            if error < best:
                best, scales[p] = error, np.int32(trial)
        rate = inverse(d * np.float32(scales[p]))
        for j in range(size):
            q[p * size + j] = np.int32(nearest(part[j] * rate, -half, half - 1))


@njit
def affine_parts(x, parts, top, most, tries, power, data, at, scales, minima, q):
    """d and dmin to data[at:], the parts' integer scales and minima, and integers in 0 .. top."""
    size = len(x) // parts
    fitted, lowest = stack(np.float32, 16), stack(np.float32, 16)
    largest, deepest = ZERO, ZERO
    for p in range(parts):
        part = x[p * size : (p + 1) * size]
        fitted[p], lowest[p] = affine(part, root_mean_square(part), top, tries, power)
        largest, deepest = max(largest, fitted[p]), max(deepest, lowest[p])
    d = halved(data, at, largest / np.float32(most))
    dmin = halved(data, at + 2, deepest / np.float32(most))
    each, each_min = inverse(d), inverse(dmin)
    for p in range(parts):
        part, best = x[p * size : (p + 1) * size], np.float32(np.inf)
        mean = root_mean_square(part)
        first, second = nearest(fitted[p] * each, 0, most), nearest(lowest[p] * each_min, 0, most)
        scales[p], minima[p] = np.int32(first), np.int32(second)
        for step in STEPS:
            for shift in STEPS:
                trial = min(max(first + np.float32(step), ZERO), np.float32(most))
                other = min(max(second + np.float32(shift), ZERO), np.float32(most))
                scale, low, error = d * trial, dmin * other, ZERO
                rate = inverse(scale)
                for value in part:
                    off = scale * nearest((value + low) * rate, 0, top) - low - value
                    error += weight_of(value, mean, power) * loss(off, power)
                if error < best:
                    best, scales[p], minima[p] = error, np.int32(trial), np.int32(other)
        low, rate = dmin * np.float32(minima[p]), inverse(d * np.float32(scales[p]))
        for j in range(size):
            q[p * size + j] = np.int32(nearest((part[j] + low) * rate, 0, top))


@njit
def put_six_bits(data, base, scales, minima):
    for p in range(4):
        data[base + p] = scales[p] | scales[p + 4] >> 4 << 6
        data[base + 4 + p] = minima[p] | minima[p + 4] >> 4 << 6
        data[base + 8 + p] = scales[p + 4] & 15 | (minima[p + 4] & 15) << 4


# One block of each block format: x float32 [block] to data uint8 [block_bytes], by way of q.


@njit
def q4_0(x, data, q):
    put_half(data, 0, from_extreme(x, 8, q))
    pack(data, 2, q, 4, 16)


@njit
def q4_1(x, data, q):
    d, m = from_range(x, 15, q)
    put_half(data, 0, d)
    put_half(data, 2, m)
    pack(data, 4, q, 4, 16)


@njit
def q5_0(x, data, q):
    put_half(data, 0, from_extreme(x, 16, q))
    pack(data, 6, q, 4, 16)
    shift_down(q, 4)
    pack(data, 2, q, 1, 1)


@njit
def q5_1(x, data, q):
    d, m = from_range(x, 31, q)
    put_half(data, 0, d)
    put_half(data, 2, m)
    pack(data, 8, q, 4, 16)
    shift_down(q, 4)
    pack(data, 4, q, 1, 1)


@njit
def shift_down(q, bits):
    for j in range(len(q)):
        q[j] >>= bits


@njit
def q8_0(x, data, q):
    largest = largest_magnitude(x)
    d = largest / np.float32(127)
    each = inverse(d)
    put_half(data, 0, d)
    for j in range(32):
        data[2 + j] = away(x[j] * each) & 255


@njit
def q2_k(x, data, q):
    scales, minima = stack(np.int32, 16), stack(np.int32, 16)
    affine_parts(x, 16, 3, 15, TOPS_Q2_K, 1, data, 80, scales, minima, q)
    for p in range(16):
        data[p] = scales[p] | minima[p] << 4
    pack(data, 16, q, 2, 32)


@njit
def q3_k(x, data, q):
    scales = stack(np.int32, 16)
    symmetric_parts(x, 16, 4, 32, TARGETS_4, data, 108, scales, q)
    raise_by(q, 4)
    raise_by(scales, 32)
    pack(data, 32, q, 2, 32)
    shift_down(q, 2)
    pack(data, 0, q, 1, 32)
    pack(data, 96, scales, 4, 8)
    shift_down(scales, 4)
    pack(data, 104, scales, 2, 4)


@njit
def raise_by(q, amount):
    for j in range(len(q)):
        q[j] += amount


@njit
def q4_k(x, data, q):
    scales, minima = stack(np.int32, 8), stack(np.int32, 8)
    affine_parts(x, 8, 15, 63, TOPS_Q4_K, 2, data, 0, scales, minima, q)
    put_six_bits(data, 4, scales, minima)
    pack(data, 16, q, 4, 32)


@njit
def q5_k(x, data, q):
    scales, minima = stack(np.int32, 8), stack(np.int32, 8)
    affine_parts(x, 8, 31, 63, TOPS_Q5_K, 2, data, 0, scales, minima, q)
    put_six_bits(data, 4, scales, minima)
    pack(data, 48, q, 4, 32)
    shift_down(q, 4)
    pack(data, 16, q, 1, 32)


@njit
def q6_k(x, data, q):
    scales = stack(np.int32, 16)
    symmetric_parts(x, 16, 32, 128, TARGETS_32, data, 208, scales, q)
    raise_by(q, 32)
    pack(data, 0, q, 4, 64)
    shift_down(q, 4)
    pack(data, 128, q, 2, 32)
    for p in range(16):
        data[192 + p] = scales[p] & 255


@njit
def iq4_nl(x, data, q):
    each = inverse(halved(data, 0, codebook(x)))
    for j in range(32):
        q[j] = index(x[j] * each)
    pack(data, 2, q, 4, 16)


@njit
def iq4_xs(x, data, q):
    fitted, scales = stack(np.float32, 8), stack(np.int32, 8)
    for p in range(8):
        fitted[p] = codebook(x[32 * p : 32 * p + 32])
    d = halved(data, 0, extreme(fitted) / np.float32(-32))
    each = inverse(d)
    for p in range(8):
        part, best = x[32 * p : 32 * p + 32], np.float32(np.inf)
        first = nearest(fitted[p] * each, -32, 31)
        scales[p] = np.int32(first)
        for step in STEPS:
            trial = min(max(first + np.float32(step), np.float32(-32)), np.float32(31))
            scale, error = d * trial, ZERO
            rate = inverse(scale)
            for value in part:
                off = scale * np.float32(NL[index(value * rate)]) - value
                error += value * value * off * off
            if error < best:
                best, scales[p] = error, np.int32(trial)
        rate = inverse(d * np.float32(scales[p]))
        for j in range(32):
            q[32 * p + j] = index(part[j] * rate)
    raise_by(scales, 32)
    pack(data, 4, scales, 4, 1)
    shift_down(scales, 4)
    pack(data, 2, scales, 2, 1)
    pack(data, 8, q, 4, 16)


@njit
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
    pack(data, 1, q, 4, 16)


@njit
def trits(x, q):
    """The scale and, raised by 1, the nearest of -1, 0 and 1."""
    largest = largest_magnitude(x)
    each = inverse(largest)
    for j in range(len(x)):
        q[j] = away(x[j] * each) + 1
    return largest


@njit
def put_base_3(data, first, begin, end, run, q):
    """Elements begin to end as numbers of up to five digits, one byte each, from data[first] on."""
    digits = min(5, (end - begin) // run)
    for i in range((end - begin) // digits):
        number = 0
        for k in range(5):
            number *= 3
            if k < digits:
                number += q[begin + i // run * run * digits + k * run + i % run]
        data[first + i] = (number * 256 + 242) // 243


@njit
def tq1_0(x, data, q):
    put_half(data, 52, trits(x, q))
    put_base_3(data, 0, 0, 160, 32, q)
    put_base_3(data, 32, 160, 240, 16, q)
    put_base_3(data, 48, 240, 256, 4, q)


@njit
def tq2_0(x, data, q):
    put_half(data, 64, trits(x, q))
    pack(data, 0, q, 2, 32)


TARGETS_4, TARGETS_32 = TARGETS[4], TARGETS[32]
TOPS_Q2_K, TOPS_Q4_K, TOPS_Q5_K = (TOPS[name] for name in ("Q2_K", "Q4_K", "Q5_K"))
BLOCKS = {
    "Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q8_0": q8_0,
    "Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k,
    "IQ4_NL": iq4_nl, "IQ4_XS": iq4_xs, "MXFP4": mxfp4, "TQ1_0": tq1_0, "TQ2_0": tq2_0,
}  # fmt: skip


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

    name = tag.instance_type.format
    if name in (floats := {"F32": f32, "F16": f16, "BF16": bf16}):
        return floats[name]
    block, elements, size = BLOCKS[name], FORMATS[name].block, FORMATS[name].block_bytes

    def blocks(tag, x, data):
        q = stack(np.int32, elements)
        for b in range(len(x) // elements):
            block(x[elements * b : elements * (b + 1)], data[size * b : size * (b + 1)], q)

    return blocks
