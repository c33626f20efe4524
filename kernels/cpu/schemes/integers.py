"""Groups of floats to and from integers: groups are split among threads, so a lone group is one
thread's work."""

from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.isa.simd import (
    add,
    convert,
    div,
    f32x16,
    i8x16,
    i32x16,
    lanewise,
    max_lanes,
    maximum,
    minimum,
    round_even,
    splat,
    sub,
    zero,
)
from kernels.cpu.isa.sweep import each_row, load_some, store_some
from kernels.cpu.quantise_activations import larger_words, largest_magnitude
from kernels.cpu.runtime.closures import inner
from reference.bounds import TINY
from reference.schemes.integers import OPS

SYMMETRIC, ASYMMETRIC, FROM_SYMMETRIC, FROM_ASYMMETRIC = (op.signature for op in OPS)
NAN, INFINITY, SMALLEST = np.float32(np.nan), np.float32(np.inf), np.float32(TINY)


@lanewise
def larger_magnitude(builder, kind, a, b):
    """The larger |lane|; infinity or NaN if one is either."""
    return builder.bitcast(larger_words(builder, kind, a, b), kind.ir)


@njit(inline="always")
def magnitude(row):
    """The largest |element|; infinity or NaN if one is either."""
    largest = zero(f32x16)
    for i in range(0, len(row), 16):
        largest = larger_magnitude(largest, load_some(row, i, len(row)))
    return largest_magnitude(largest, largest)


@njit(inline="always")
def kept(scale):
    """A scale, flushed to 0 below the normal range."""
    return np.float32(0) if scale < SMALLEST else scale


@njit(inline="always")
def scale_of(row, top):
    """The scale that maps the largest magnitude to `top`; NaN if an element is not finite."""
    largest = magnitude(row)
    return kept(largest / top) if largest < INFINITY else NAN


@njit(inline="always")
def all_zero(q):
    for i in range(len(q)):
        q[i] = 0


@njit(inline="always")
def as_bytes(whole):
    """Integral floats as int8."""
    return convert(i8x16, convert(i32x16, whole))


def group_in(code: Any) -> Any:
    """(row, q, top) -> scale: fills q with `code` of sixteen elements over their scale, which maps
    the largest magnitude to `top`."""

    @inner
    def group(row, q, top):
        scale = scale_of(row, top)
        if not scale > 0:
            all_zero(q)
            return scale
        steps = splat(f32x16, scale)
        for i in range(0, len(row), 16):
            store_some(q, i, len(q), code(div(load_some(row, i, len(row)), steps)))
        return scale

    return group


@njit(inline="always")
def nearest(value):
    return as_bytes(round_even(value))


symmetric_group = group_in(nearest)


@inner
def asymmetric_group(row, q, least, steps):
    """Fills q and returns the scale and the zero point."""
    high, low = zero(f32x16), zero(f32x16)
    for i in range(0, len(row), 16):
        values = load_some(row, i, len(row))
        high, low = maximum(high, values), maximum(low, sub(zero(f32x16), values))
    depth = max_lanes(low)
    scale = kept(max_lanes(high) / steps + depth / steps) if magnitude(row) < INFINITY else NAN
    if not scale > 0:
        all_zero(q)
        return scale, np.int32(0)
    point = least + np.rint(depth / scale)
    zeros, each, most = splat(f32x16, point), splat(f32x16, scale), splat(f32x16, least + steps)
    for i in range(0, len(row), 16):
        whole = round_even(div(load_some(row, i, len(row)), each))
        whole = minimum(add(whole, zeros), most)  # the lowest element maps to `least` exactly
        store_some(q, i, len(q), as_bytes(whole))
    return scale, np.int32(point)


@each_row(SYMMETRIC)
def symmetric(g, x, bits, q, scale):
    top = np.float32((1 << (bits - 1)) - 1)
    scale[g] = symmetric_group(x[g], q[g], top)


@each_row(ASYMMETRIC)
def asymmetric(g, x, bits, q, scale, point):
    least, steps = np.float32(-(1 << (bits - 1))), np.float32((1 << bits) - 1)
    scale[g], point[g] = asymmetric_group(x[g], q[g], least, steps)


@each_row(FROM_SYMMETRIC)
def from_symmetric(g, q, scale, out):
    for i in range(q.shape[1]):
        out[g, i] = np.float32(q[g, i]) * scale[g]


@each_row(FROM_ASYMMETRIC)
def from_asymmetric(g, q, scale, point, out):
    for i in range(q.shape[1]):
        out[g, i] = (np.float32(q[g, i]) - np.float32(point[g])) * scale[g]
