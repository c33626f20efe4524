"""sparse_axpy on the CPU: threads divide hidden, so that each output is one chain over the active
neurons in order, the same for any number of threads.

Four neurons meet 32 columns of some tokens at once. A neuron whose factors are all zero adds
nothing and is not read: a predictor's false alarms cost nothing here.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.bits import half_at
from kernels.cpu.formats import CODINGS, TAGS, element
from kernels.cpu.rows import ask
from kernels.cpu.share import arguments, by_format, part
from kernels.cpu.simd import (
    add,
    bf16x16,
    convert,
    f16x16,
    f32x1,
    f32x16,
    fma,
    high_nibbles,
    i8x16,
    load,
    low_nibbles,
    mul,
    splat,
    store,
)
from kernels.cpu.simd_shuffle import stack
from reference.formats import FORMATS

SIGNATURE = (
    "a: f32[tokens neurons], weight: u8[packed], rows: i32[neurons], count: i32[1]"
    " -> out: f32[tokens hidden]"
)
COLUMNS, NEURONS, TOKENS = 32, 4, 64
FACTORS = NEURONS * TOKENS


def decoded_floats(kind: Any) -> Any:
    step = kind.bits // 8

    @njit(inline="always")
    def decode(weight, start, c):
        at = start + c // 16 * step
        return convert(f32x16, load(kind, weight, at)), convert(
            f32x16, load(kind, weight, at + step)
        )

    return decode


@njit(inline="always")
def q8_0(weight, start, c):
    at = start + c // 32 * 34
    d = splat(f32x16, half_at(weight, at))
    low, high = load(i8x16, weight, at + 2), load(i8x16, weight, at + 18)
    return mul(d, convert(f32x16, low)), mul(d, convert(f32x16, high))


@njit(inline="always")
def q4_0(weight, start, c):
    at = start + c // 32 * 18
    scale = half_at(weight, at)
    d, less = splat(f32x16, scale), splat(f32x16, np.float32(-8) * scale)
    codes = load(i8x16, weight, at + 2)
    low, high = convert(f32x16, low_nibbles(codes)), convert(f32x16, high_nibbles(codes))
    return fma(d, low, less), fma(d, high, less)  # exact: d has 11 bits, a code 4


def decoded_q4_k() -> Any:
    scale_at, offset_at = CODINGS["Q4_K"].scale_at(), CODINGS["Q4_K"].offset_at()

    @njit(inline="always")
    def decode(weight, start, c):
        at, j = start + c // 256 * 144, c % 256
        d = splat(f32x16, scale_at(weight, at, j))
        m = splat(f32x16, np.float32(offset_at(weight, at, j)))
        codes = at + 16 + j // 64 * 32
        low, high = load(i8x16, weight, codes), load(i8x16, weight, codes + 16)
        if j % 64 < 32:
            low, high = low_nibbles(low), low_nibbles(high)
        else:
            low, high = high_nibbles(low), high_nibbles(high)
        return add(mul(d, convert(f32x16, low)), m), add(mul(d, convert(f32x16, high)), m)

    return decode


def decoded_elements(format: str) -> Any:
    """Any format, one element after the other."""
    tag, elements, size = TAGS[format], FORMATS[format].block, FORMATS[format].block_bytes

    @njit
    def decode(weight, start, c):
        values = stack(np.float32, COLUMNS)
        row = weight[start + c // elements * size :]
        for i in range(COLUMNS):
            values[i] = element(tag, row, c % elements + i)
        return load(f32x16, values, 0), load(f32x16, values, 16)

    return decode


DECODED = {
    "F32": decoded_floats(f32x16),
    "F16": decoded_floats(f16x16),
    "BF16": decoded_floats(bf16x16),
    "Q8_0": q8_0,
    "Q4_0": q4_0,
    "Q4_K": decoded_q4_k(),
}


@njit
def next_neurons(own, j, row_bytes, starts, factors):
    """The next neurons from the j-th active one on that any of these tokens wants: where their rows
    begin, and factors [tokens][4]. -> how many, and where to go on."""
    a, first, count, rows, active = own
    found = 0
    while found < NEURONS and j < active:
        neuron, wanted = rows[j], False
        for t in range(count):
            factor = a[first + t, neuron]
            factors[NEURONS * t + found] = factor
            wanted |= factor != 0
        if wanted:
            starts[found] = np.int64(neuron) * row_bytes
            found += 1
        j += 1
    return found, j


@njit(inline="always")
def added(sums, weights, factor):
    low, high = sums
    first, second = weights
    scalar = splat(f32x16, factor)
    return fma(first, scalar, low), fma(second, scalar, high)


@njit(inline="always")
def columns_of(out, at):
    return load(f32x16, out, at), load(f32x16, out, at + 16)


@njit(inline="always")
def put_columns(out, at, sums):
    low, high = sums
    store(out, at, low)
    store(out, at + 16, high)


def kernel(format: str) -> Callable[..., None]:
    decode, tag = DECODED.get(format) or decoded_elements(format), TAGS[format]
    elements, size = FORMATS[format].block, FORMATS[format].block_bytes

    @njit
    def add_four(weight, starts, ahead, factors, first, count, begin, end, out):
        """Four neurons' columns added to the tokens' outputs; those at `ahead` are asked for."""
        first_byte, last = begin // elements * size, end // elements * size
        row, byte = 0, first_byte
        for c in range(begin, end, COLUMNS):
            at, then = c // elements * size, (c + COLUMNS) // elements * size
            row, byte = ask(
                weight, ahead, row, byte, first_byte, last, NEURONS * at, NEURONS * then
            )
            w0, w1 = decode(weight, starts[0], c), decode(weight, starts[1], c)
            w2, w3 = decode(weight, starts[2], c), decode(weight, starts[3], c)
            for t in range(count):
                at, own = (first + t) * out.shape[1] + c, NEURONS * t
                sums = added(columns_of(out, at), w0, factors[own])
                sums = added(sums, w1, factors[own + 1])
                sums = added(sums, w2, factors[own + 2])
                put_columns(out, at, added(sums, w3, factors[own + 3]))

    @njit
    def add_one(weight, start, r, factors, first, count, begin, end, out):
        for c in range(begin, end, COLUMNS):
            w = decode(weight, start, c)
            for t in range(count):
                at = (first + t) * out.shape[1] + c
                put_columns(out, at, added(columns_of(out, at), w, factors[NEURONS * t + r]))

    @njit
    def add_rest(weight, start, r, factors, first, count, begin, out):
        """The columns that fill no vector, one by one."""
        row = weight[start:]
        for c in range(begin, out.shape[1]):
            w = splat(f32x1, element(tag, row, c))
            for t in range(count):
                factor = splat(f32x1, factors[NEURONS * t + r])
                at = (first + t) * out.shape[1] + c
                store(out, at, fma(w, factor, load(f32x1, out, at)))

    def sparse_axpy(block, thread, n_threads):
        a, weight, rows, count, out = arguments(block, SIGNATURE)
        tokens, hidden = out.shape
        active, row_bytes, whole = count[0], weight.size // len(rows), hidden // COLUMNS
        begin, end = part(whole, thread, n_threads)
        begin, end = begin * COLUMNS, end * COLUMNS
        rest = hidden if thread < n_threads - 1 else whole * COLUMNS
        starts, ahead = stack(np.int64, NEURONS), stack(np.int64, NEURONS)
        factors, after = stack(np.float32, FACTORS), stack(np.float32, FACTORS)
        for first in range(0, tokens, TOKENS):
            held = min(TOKENS, tokens - first)
            for t in range(first, first + held):
                out[t, begin:end] = 0
                out[t, rest:] = 0
            own = a, first, held, rows, active
            found, j = next_neurons(own, 0, row_bytes, starts, factors)
            while found:
                more, j = next_neurons(own, j, row_bytes, ahead, after)
                if found == NEURONS:
                    add_four(weight, starts, ahead, factors, first, held, begin, end, out)
                else:
                    for r in range(found):
                        add_one(weight, starts[r], r, factors, first, held, begin, end, out)
                for r in range(found):
                    add_rest(weight, starts[r], r, factors, first, held, rest, out)
                starts, ahead, factors, after, found = ahead, starts, after, factors, more

    return sparse_axpy


SHARES = by_format(kernel, SIGNATURE, {f: f for f in FORMATS})
