"""Encoders of formats with fitted scales (scale_search.py), sixteen parts of blocks at a time.

A format's encoder consists of: the fit of its parts, which gives each a rate and a shift; the code
of (x + shift) * rate; and the position of codes and scales in a block's bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.scale_search import (
    LANES,
    ZERO,
    affine_fit,
    affine_parts_fit,
    at,
    by_importance,
    by_size,
    by_squares,
    inverse,
    named,
    nearest,
    symmetric_fit,
    symmetric_parts_fit,
    whole,
)
from kernels.cpu.isa.bits import half_at, pack, put_half
from kernels.cpu.isa.lanes import where
from kernels.cpu.isa.simd import convert, f32x16, i32x16, splat, store, zero
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.runtime.closures import inner
from reference.formats import FORMATS
from reference.formats.codebooks import ENDS, MIDDLES
from reference.formats.scale_search import FINER, TRIES
from reference.formats.superblocks import AFFINE, SYMMETRIC

# How parts are fitted: (x, weights, halves, scales, minima, rates, shifts). Elements and weights
# lie as scale_search.py wants them; a block's float16s go to `halves`, side by side, and what else
# is wanted of the parts to arrays of sixteen float32s.


def one_scale(size: int, targets: Any, becomes: Any) -> Any:
    """One float16 scale per part."""
    symmetric = symmetric_fit(becomes)

    @inner
    def fit(x, weights, halves, scales, minima, rates, shifts):
        store(scales, 0, symmetric(x, weights, size, targets))
        for p in range(LANES):
            put_half(halves, 2 * p, scales[p])
            scales[p] = half_at(halves, 2 * p)
        store(rates, 0, inverse(at(scales, 0)))
        store(shifts, 0, zero(f32x16))

    return fit


def scale_and_minimum(size: int, top: int) -> Any:
    """One float16 scale and one float16 minimum per part."""
    affine, tops = affine_fit(2), np.array([top + step for step in FINER], np.float32)

    @inner
    def fit(x, weights, halves, scales, minima, rates, shifts):
        scale, minimum = affine(x, weights, size, top, tops)
        store(scales, 0, scale)
        store(minima, 0, ZERO - minimum)
        for p in range(LANES):
            put_half(halves, 4 * p, scales[p])
            put_half(halves, 4 * p + 2, minima[p])
            scales[p], shifts[p] = half_at(halves, 4 * p), -half_at(halves, 4 * p + 2)
        store(rates, 0, inverse(at(scales, 0)))

    return fit


def integer_scales(parts: int, most: int, targets: Any, becomes: Any) -> Any:
    """A float16 scale per block of 256, integer scales of its parts."""
    fit_parts, size = symmetric_parts_fit(becomes), 256 // parts

    @inner
    def fit(x, weights, halves, scales, minima, rates, shifts):
        d = stack(np.float32, LANES)
        fit_parts(x, weights, size, parts, most, targets, halves, d, scales)
        store(rates, 0, inverse(at(d, 0) * at(scales, 0)))
        store(shifts, 0, zero(f32x16))

    return fit


def integer_scales_and_minima(name: str, power: int) -> Any:
    """Two float16s per block of 256, integer scales and minima of its parts."""
    how = AFFINE[name]
    fit_parts, size = affine_parts_fit(power), 256 // how.parts
    parts, top, most = how.parts, how.top, how.most
    tops = np.array([top + step for step in how.tries], np.float32)

    @inner
    def fit(x, weights, halves, scales, minima, rates, shifts):
        d, m = stack(np.float32, LANES), stack(np.float32, LANES)
        fit_parts(x, weights, size, parts, top, most, tops, halves, d, m, scales, minima)
        store(rates, 0, inverse(at(d, 0) * at(scales, 0)))
        store(shifts, 0, at(m, 0) * at(minima, 0))

    return fit


# Codes of elements, unsigned integers as floats.


def raised(half: int) -> Any:
    """Integers in [-half, half), plus half."""
    becomes, up = whole(half), np.float32(half)

    @njit(inline="always")
    def code(scaled):
        return becomes(scaled) + up

    return code


def up_to(top: int) -> Any:
    @njit(inline="always")
    def code(scaled):
        return nearest(scaled, 0, top)

    return code


@inner
def index(scaled):
    """Index of the nearest of IQ4's values, the lower of two at a tie."""
    found = zero(f32x16)
    for i in range(len(MIDDLES)):
        found = where(scaled > MIDDLES[i], splat(f32x16, np.float32(i + 1)), found)
    return found


# A block's bytes from its float16s, integer scales and minima, and codes.


def nibbles(at: int, run: int, fifths: int = 0) -> Any:
    """(data, q): from byte `at` fifth bits in runs of `fifths`, if any, and nibbles in runs of
    `run`."""

    @inner
    def four(data, q):
        pack(data, at, q, 0, 4, run)

    @inner
    def five(data, q):
        pack(data, at, q, 4, 1, fifths)
        pack(data, at + len(q) // 8, q, 0, 4, run)

    return five if fifths else four


@inner
def put_bytes(data, at, source):
    for i in range(len(source)):  # a slice of another's would have to be of its size
        data[at + i] = source[i]


def put_nibbles(head: int, fifths: int = 0) -> Any:
    """Write nibbles after `head` bytes of float16s."""
    put_codes = nibbles(head, 16, fifths)

    @inner
    def put(data, halves, scales, minima, q):
        put_bytes(data, 0, halves)
        put_codes(data, q)

    return put


def put_superblock(fifths: int = 0) -> Any:
    """Write a superblock after two float16s, and six-bit scales and minima."""
    put_codes = nibbles(16, 32, fifths)

    @inner
    def put(data, halves, scales, minima, q):
        put_bytes(data, 0, halves)
        for p in range(4):
            data[4 + p] = scales[p] | scales[p + 4] >> 4 << 6
            data[8 + p] = minima[p] | minima[p + 4] >> 4 << 6
            data[12 + p] = scales[p + 4] & 15 | (minima[p + 4] & 15) << 4
        put_codes(data, q)

    return put


@inner
def put_q2_k(data, halves, scales, minima, q):
    for p in range(16):
        data[p] = scales[p] | minima[p] << 4
    pack(data, 16, q, 0, 2, 32)
    put_bytes(data, 80, halves)


@inner
def put_q3_k(data, halves, scales, minima, q):
    for p in range(16):
        scales[p] += 32
    pack(data, 0, q, 2, 1, 32)
    pack(data, 32, q, 0, 2, 32)
    pack(data, 96, scales, 0, 4, 8)
    pack(data, 104, scales, 4, 2, 4)
    put_bytes(data, 108, halves)


@inner
def put_q6_k(data, halves, scales, minima, q):
    pack(data, 0, q, 0, 4, 64)
    pack(data, 128, q, 4, 2, 32)
    for p in range(16):
        data[192 + p] = scales[p] & 255
    put_bytes(data, 208, halves)


@inner
def put_iq4_xs(data, halves, scales, minima, q):
    for p in range(8):
        scales[p] += 32
    put_bytes(data, 0, halves)
    pack(data, 2, scales, 4, 2, 1)
    pack(data, 4, scales, 0, 4, 1)
    pack(data, 8, q, 0, 4, 16)


def targets(half: int) -> Any:
    return np.array([-(half + step) for step in TRIES], np.float32)


IQ4_ENDS = np.array(ENDS, np.float32)


@dataclass(frozen=True, slots=True)
class Encoder:
    """A format by the functions above; `halves` is the number of float16s in a block, and `power`
    the exponent of the error where there are minima: given if columns are weighted, else the
    format's own."""

    fit: Callable[[int], Any]
    code: Any
    put: Any
    parts: int = 1
    halves: int = 1
    weigh: Any = by_squares
    power: int = 2


def with_integer_scales(name: str, put: Any) -> Encoder:
    how = SYMMETRIC[name]
    becomes = whole(how.half)
    return Encoder(
        lambda _: integer_scales(how.parts, how.most, targets(how.half), becomes),
        raised(how.half), put, how.parts,
    )  # fmt: skip


def with_minima(name: str, put: Any) -> Encoder:
    how = AFFINE[name]
    return Encoder(
        lambda power: integer_scales_and_minima(name, power),
        up_to(how.top), put, how.parts, 2, by_size(how.power), how.power,
    )  # fmt: skip


FITTED = {
    "Q4_0": Encoder(lambda _: one_scale(32, targets(8), whole(8)), raised(8), put_nibbles(2)),
    "Q4_1": Encoder(lambda _: scale_and_minimum(32, 15), up_to(15), put_nibbles(4), halves=2),
    "Q5_0": Encoder(lambda _: one_scale(32, targets(16), whole(16)), raised(16), put_nibbles(2, 1)),
    "Q5_1": Encoder(lambda _: scale_and_minimum(32, 31), up_to(31), put_nibbles(4, 1), halves=2),
    "Q2_K": with_minima("Q2_K", put_q2_k),
    "Q3_K": with_integer_scales("Q3_K", put_q3_k),
    "Q4_K": with_minima("Q4_K", put_superblock()),
    "Q5_K": with_minima("Q5_K", put_superblock(32)),
    "Q6_K": with_integer_scales("Q6_K", put_q6_k),
    "IQ4_NL": Encoder(lambda _: one_scale(32, IQ4_ENDS, named), index, put_nibbles(2)),
    "IQ4_XS": Encoder(lambda _: integer_scales(8, 32, IQ4_ENDS, named), index, put_iq4_xs, 8),
}


@cache
def encoder(name: str, weighted: bool) -> Any:
    """(x, importance, data): encode the row of float32 `x` to the row of bytes `data`. Importance
    is ignored unless `weighted`."""
    form, blocks_of = FITTED[name], FORMATS[name]
    parts, put, code = form.parts, form.put, form.code
    weigh = by_importance if weighted else form.weigh
    fit = form.fit(2 if weighted else form.power)
    elements, block_bytes, half_bytes = blocks_of.block, blocks_of.block_bytes, 2 * form.halves
    size, at_once = elements // parts, LANES // parts
    gang = LANES * size

    @inner
    def gather(x, first, blocks, found):
        """Blocks from `first` as [elements of a part][16]; the last is repeated beyond the end."""
        for lane in range(LANES):
            block = min(first + lane // parts, blocks - 1)
            begin = block * elements + lane % parts * size
            for j in range(size):
                found[LANES * j + lane] = x[begin + j]

    @inner
    def nothing(x, first, blocks, found):
        pass

    gather_importance = gather if weighted else nothing

    @inner
    def encode(x, importance, data):
        each, weights = stack(np.float32, gang), stack(np.float32, gang)
        matters, q = stack(np.float32, gang), stack(np.int32, gang)
        scales, minima = stack(np.float32, LANES), stack(np.float32, LANES)
        rates, shifts = stack(np.float32, LANES), stack(np.float32, LANES)
        halves, codes = stack(np.uint8, 64), stack(np.int32, LANES)
        own, lowest = stack(np.int32, LANES), stack(np.int32, LANES)
        blocks = len(x) // elements
        for first in range(0, blocks, at_once):
            gather(x, first, blocks, each)
            gather_importance(importance, first, blocks, matters)
            weigh(each, matters, size, weights)
            fit(each, weights, halves, scales, minima, rates, shifts)
            for j in range(size):
                scaled = (at(each, j) + at(shifts, 0)) * at(rates, 0)
                store(codes, 0, convert(i32x16, code(scaled)))
                for lane in range(LANES):
                    q[lane * size + j] = codes[lane]
            for lane in range(LANES):
                own[lane], lowest[lane] = np.int32(scales[lane]), np.int32(minima[lane])
            for b in range(min(at_once, blocks - first)):
                begin = (first + b) * block_bytes
                put(
                    data[begin : begin + block_bytes],
                    halves[b * half_bytes : (b + 1) * half_bytes],
                    own[b * parts : (b + 1) * parts],
                    lowest[b * parts : (b + 1) * parts],
                    q[b * elements : (b + 1) * elements],
                )

    return encode
