"""Bytes: float16 numbers, and fields of a few bits as reference/formats/bits.py lays them out."""

import numpy as np
from numba import njit

from kernels.cpu.isa.simd import convert, extract, f16x1, f32x1, load, splat, store


@njit(inline="always")
def half_at(data, offset):
    """The float16 at a byte offset, as float32."""
    return extract(convert(f32x1, load(f16x1, data, offset)), 0)


@njit(inline="always")
def put_half(data, offset, value):
    """float32 to float16, nearest even, at a byte offset."""
    store(data, offset, convert(f16x1, splat(f32x1, value)))


@njit(inline="always")
def field(data, base, j, bits, run):
    """Field j of those that begin at data[base], laid out as `unpack` says."""
    span = run * (8 // bits)
    byte = np.int32(data[base + j // span * run + j % run])
    return byte >> (bits * (j % span // run)) & ((1 << bits) - 1)


@njit(inline="always")
def pack(data, base, q, low, bits, run):
    """Pack `bits` bits of each of q, starting with bit `low`, consecutively from data[base]."""
    per_byte = 8 // bits
    span = run * per_byte
    for byte in range(len(q) // per_byte):
        first, total = byte // run * span + byte % run, 0
        for k in range(per_byte):
            total |= (np.int32(q[first + k * run]) >> low & ((1 << bits) - 1)) << (k * bits)
        data[base + byte] = total
