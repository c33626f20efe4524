"""sparse_axpy on the CPU: threads split hidden, so that each output is one chain over the active
neurons in order, the same for any number of threads.

Eight neurons, or with AVX-512 sixteen for a single token and block formats, are processed with 32
columns at once: several row streams are faster from memory than one, and outputs are loaded and
stored less often. A neuron whose factors are all zero adds nothing and is not read: a predictor's
false positives cost nothing here. Rows may be strided: a weight's second axis is their stride.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.columns import COLUMNS, DECODED, SPREAD, TABLED, decoded_elements
from kernels.cpu.formats.decoding import TAGS, element
from kernels.cpu.formats.rows import prefetch_along
from kernels.cpu.isa.simd import CACHE_LINE, f32x1, f32x16, fma, load, prefetch, splat, store
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.linear.linear import FIRST, named
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, by_format, part
from reference.formats import FORMATS

SIGNATURE = (
    "a: f32[tokens neurons], weight: u8[held stride], rows: i32[neurons], count: i32[1],"
    " slots: i32[neurons], tuning: i64[knobs] -> out: f32[tokens hidden]"
)
NEURONS, TOKENS = 8, 64
FACTORS = NEURONS * TOKENS
ABREAST = 16  # neurons of block formats for a single token with AVX-512


@inner
def next_neurons(own, j, starts, factors):
    """The next neurons from the j-th active one that any of these tokens needs, at most eight, or
    for a single token as many as `starts` holds: where their rows begin, and factors [tokens][8].
    -> how many, and where to continue."""
    a, first, count, rows, active, slots, stride = own
    found = 0
    while count == 1 and found < len(starts) and j < active:  # no unpredictable branch
        neuron = rows[j]
        factors[found] = a[first, neuron]
        starts[found] = np.int64(slots[neuron]) * stride
        found += a[first, neuron] != 0
        j += 1
    while found < NEURONS and j < active:
        neuron, wanted = rows[j], False
        for t in range(count):
            factor = a[first + t, neuron]
            factors[NEURONS * t + found] = factor
            wanted |= factor != 0
        if wanted:
            starts[found] = np.int64(slots[neuron]) * stride
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


def together(decode: Any) -> Any:
    """Eight neurons' columns, decoded for all tokens, added to their outputs."""

    @njit(inline="always")
    def columns(weight, starts, factors, first, count, c, out):
        w0, w1 = decode(weight, starts[0], c), decode(weight, starts[1], c)
        w2, w3 = decode(weight, starts[2], c), decode(weight, starts[3], c)
        w4, w5 = decode(weight, starts[4], c), decode(weight, starts[5], c)
        w6, w7 = decode(weight, starts[6], c), decode(weight, starts[7], c)
        for t in range(count):
            at, own = (first + t) * out.shape[1] + c, NEURONS * t
            sums = added(columns_of(out, at), w0, factors[own])
            sums = added(sums, w1, factors[own + 1])
            sums = added(sums, w2, factors[own + 2])
            sums = added(sums, w3, factors[own + 3])
            sums = added(sums, w4, factors[own + 4])
            sums = added(sums, w5, factors[own + 5])
            sums = added(sums, w6, factors[own + 6])
            put_columns(out, at, added(sums, w7, factors[own + 7]))

    return columns


def by_turns(decode: Any) -> Any:
    """The same for one token, neuron by neuron: AVX2's registers hold only four, and AVX-512's not
    sixteen."""

    @njit(inline="always")
    def columns(weight, starts, factors, first, count, c, out):
        at = first * out.shape[1] + c
        sums = columns_of(out, at)
        for r in range(len(starts)):
            sums = added(sums, decode(weight, starts[r], c), factors[r])
        put_columns(out, at, sums)

    return columns


def over_columns(columns: Any, format: str) -> Any:
    """Add eight neurons' columns to the tokens' outputs, and prefetch: at a distance in each row,
    or the same columns of the next eight neurons."""
    elements, size = FORMATS[format].block, FORMATS[format].block_bytes

    @inner
    def add_together(weight, starts, ahead, factors, first, count, begin, end, along, out):
        first_byte, last = begin // elements * size, end // elements * size
        distance = along or last - first_byte
        for c in range(begin, end, COLUMNS):
            at, then = c * size // elements, (c + COLUMNS) * size // elements
            prefetch_along(weight, starts, ahead, at, then - at, first_byte, last, distance)
            columns(weight, starts, factors, first, count, c, out)

    return add_together


def in_lines(decode: Any, format: str) -> Any:
    """Floats of a single token, neuron by neuron, each neuron's columns prefetched into the second
    cache just before those of the current one: faster from memory than all at once."""
    size = FORMATS[format].block_bytes
    lines = size * COLUMNS // CACHE_LINE

    @inner
    def add_from(weight, starts, asked, beyond, factors, at, begin, end, out):
        for c in range(begin, end, COLUMNS):
            sums = columns_of(out, at + c)
            ahead = c * size + beyond
            for r in range(len(starts)):
                for line in range(lines):
                    prefetch(weight, asked[r] + ahead + line * CACHE_LINE, 2)
                sums = added(sums, decode(weight, starts[r], c), factors[r])
            put_columns(out, at + c, sums)

    @inner
    def add_together(weight, starts, ahead, factors, first, count, begin, end, along, out):
        whole, at = (end - begin) * size, first * out.shape[1]
        beyond = min(along or whole, whole)
        own = begin + (whole - beyond) // (COLUMNS * size) * COLUMNS
        add_from(weight, starts, starts, beyond, factors, at, begin, own, out)
        add_from(weight, starts, ahead, beyond - whole, factors, at, own, end, out)

    return add_together


def axpy(decoded: Mapping[str, Any], most: int, variant: str, format: str) -> Callable[..., None]:
    """`most`: neurons of block formats that a single token processes one by one; 0: like several
    tokens."""
    decode, tag = decoded.get(format) or decoded_elements(format), TAGS[format]
    add_together = over_columns(together(decode), format)
    floats = FORMATS[format].block == 1
    add_alone = in_lines(decode, format) if floats else over_columns(by_turns(decode), format)
    held, alone = NEURONS if floats else most or NEURONS, most > 0

    @inner
    def add_one(weight, start, r, factors, first, count, begin, end, out):
        for c in range(begin, end, COLUMNS):
            w = decode(weight, start, c)
            for t in range(count):
                at = (first + t) * out.shape[1] + c
                put_columns(out, at, added(columns_of(out, at), w, factors[NEURONS * t + r]))

    @inner
    def add_rest(weight, start, r, factors, first, count, begin, out):
        """The columns that fill no vector, one by one."""
        row = weight[start:]
        for c in range(begin, out.shape[1]):
            w = splat(f32x1, element(tag, row, c))
            for t in range(count):
                factor = splat(f32x1, factors[NEURONS * t + r])
                at = (first + t) * out.shape[1] + c
                store(out, at, fma(w, factor, load(f32x1, out, at)))

    def sparse_axpy(args, thread, n_threads):
        a, weight, rows, count, slots, tuning, out = arguments(args, SIGNATURE)
        tokens, hidden = out.shape
        active, stride, whole = count[0], weight.shape[1], hidden // COLUMNS
        bytes_ = weight.reshape(weight.size)
        begin, end = part(whole, thread, n_threads)
        begin, end = begin * COLUMNS, end * COLUMNS
        rest = hidden if thread < n_threads - 1 else whole * COLUMNS
        starts, ahead = stack(np.int64, held), stack(np.int64, held)
        factors, after = stack(np.float32, FACTORS), stack(np.float32, FACTORS)
        for first in range(0, tokens, TOKENS):
            some = min(TOKENS, tokens - first)
            for t in range(first, first + some):
                out[t, begin:end] = 0
                out[t, rest:] = 0
            own = a, first, some, rows, active, slots, stride
            found, j = next_neurons(own, FIRST, starts, factors)
            while found:
                more, j = next_neurons(own, j, ahead, after)
                rest_of = factors, first, some, begin, end, tuning[0], out
                if alone and some == 1:
                    add_alone(bytes_, starts[:found], ahead, *rest_of)
                elif found == NEURONS:
                    add_together(bytes_, starts[:NEURONS], ahead[:NEURONS], *rest_of)
                else:
                    for r in range(found):
                        add_one(bytes_, starts[r], r, factors, first, some, begin, end, out)
                if rest < hidden:
                    for r in range(found):
                        add_rest(bytes_, starts[r], r, factors, first, some, rest, out)
                starts, ahead, factors, after, found = ahead, starts, after, factors, more

    return named(sparse_axpy, variant)


def _shares(
    decoded: Mapping[str, Any], most: int, variant: str, formats: Iterable[str]
) -> dict[str, Share]:
    return by_format(partial(axpy, decoded, most, variant), SIGNATURE, {f: f for f in formats})


GENERIC_SHARES = _shares(DECODED, 0, "generic", FORMATS)
AVX2_SHARES = _shares(SPREAD, NEURONS, "avx2", SPREAD)
AVX512_SHARES = _shares(SPREAD | TABLED, ABREAST, "avx512", SPREAD | TABLED)
