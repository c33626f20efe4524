"""Scales that minimise a block's weighted error, found as in reference/formats/scale_search.py: the
same candidates, sums and comparisons in the same order, so the same integers.

Sixteen parts are fitted at once, one per lane. Elements and weights are [elements of a part][16].
"""

from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.isa.bits import half_at, put_half
from kernels.cpu.isa.lanes import alike, both, fabs, root, where, within
from kernels.cpu.isa.simd import f32x16, load, round_even, splat, store, zero
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.runtime.closures import inner
from reference.formats.codebooks import MIDDLES, NL
from reference.formats.format import NO_INVERSE
from reference.formats.scale_search import STEPS

LANES = 16
ZERO, ONE, INFINITY = np.float32(0), np.float32(1), np.float32(np.inf)
VALUES = NL.astype(np.float32)


@njit(inline="always")
def at(x, j):
    """Element j of every part."""
    return load(f32x16, x, LANES * j)


@njit(inline="always")
def quotient(a, b):
    return where(b == ZERO, alike(b, ZERO), a / where(b == ZERO, alike(b, ONE), b))


@njit(inline="always")
def inverse(d):
    return where(fabs(d) > NO_INVERSE, ONE / d, alike(d, ZERO))


@njit(inline="always")
def nearest(x, low, high):
    return within(round_even(x), np.float32(low), np.float32(high))


def whole(half: int) -> Any:
    """Elements over their scale as integers in [-half, half)."""
    low, high = np.float32(-half), np.float32(half - 1)

    @njit(inline="always")
    def becomes(scaled):
        return within(round_even(scaled), low, high)

    return becomes


@inner
def named(scaled):
    """The nearest of NL's values, the lower of two at a tie."""
    value = splat(f32x16, VALUES[0])
    for i in range(len(MIDDLES)):
        value = where(scaled > MIDDLES[i], splat(f32x16, VALUES[i + 1]), value)
    return value


@inner
def extreme(x, size):
    """The element of largest magnitude, the first if there are several."""
    found = at(x, 0)
    for j in range(1, size):
        value = at(x, j)
        found = where(fabs(value) > fabs(found), value, found)
    return found


@inner
def mean_square(x, size):
    total = zero(f32x16)
    for j in range(size):
        total = total + at(x, j) * at(x, j)
    return total / np.float32(size)


# Weights of elements, to `weights`.


@inner
def by_importance(x, importance, size, weights):
    mean = mean_square(x, size)
    for j in range(size):
        weight = at(importance, j) * root(mean + at(x, j) * at(x, j))
        store(weights, LANES * j, weight)


@inner
def by_squares(x, importance, size, weights):
    for j in range(size):
        store(weights, LANES * j, at(x, j) * at(x, j))


def by_size(power: int) -> Any:
    @inner
    def weigh(x, importance, size, weights):
        mean = root(mean_square(x, size)) if power == 2 else zero(f32x16)
        for j in range(size):
            store(weights, LANES * j, fabs(at(x, j)) + mean)

    return weigh


# The fits.


def symmetric_fit(becomes: Any) -> Any:
    """(x, weights, size, targets) -> the scale with the smallest weighted error."""

    @inner
    def symmetric(x, weights, size, targets):
        peak, best, scale = extreme(x, size), zero(f32x16), zero(f32x16)
        for target in targets:
            each = quotient(splat(f32x16, target), peak)
            along, square = zero(f32x16), zero(f32x16)
            for j in range(size):
                value = at(x, j)
                q = becomes(value * each)
                weighted = at(weights, j) * q
                along = along + weighted * value
                square = square + weighted * q
            explained = quotient(along * along, square)
            better = explained > best
            best = where(better, explained, best)
            scale = where(better, quotient(along, square), scale)
        return scale

    return symmetric


def symmetric_parts_fit(becomes: Any) -> Any:
    """(x, weights, size, parts, most, targets, halves, d, scales): each block's d as float16 to
    `halves`, d and each part's integer scales."""
    symmetric = symmetric_fit(becomes)

    @inner
    def symmetric_parts(x, weights, size, parts, most, targets, halves, d, scales):
        fitted = symmetric(x, weights, size, targets)
        largest = stack(np.float32, LANES)
        store(largest, 0, fitted)
        for block in range(LANES // parts):
            peak = largest[block * parts]
            for p in range(block * parts, (block + 1) * parts):
                if abs(largest[p]) > abs(peak):
                    peak = largest[p]
            put_half(halves, 2 * block, peak / np.float32(-most))
            for p in range(block * parts, (block + 1) * parts):
                d[p] = half_at(halves, 2 * block)
        step_of = at(d, 0)
        first = nearest(fitted * inverse(step_of), -most, most - 1)
        best, chosen = splat(f32x16, INFINITY), first
        for step in STEPS:
            trial = within(first + np.float32(step), np.float32(-most), np.float32(most - 1))
            scale = step_of * trial
            rate, error = inverse(scale), zero(f32x16)
            for j in range(size):
                value = at(x, j)
                off = scale * becomes(value * rate) - value
                error = error + at(weights, j) * off * off
            better = error < best
            best, chosen = where(better, error, best), where(better, trial, chosen)
        store(scales, 0, chosen)

    return symmetric_parts


@njit(inline="always")
def distance(off):
    return fabs(off)


@njit(inline="always")
def its_square(off):
    return off * off


LOSSES = {1: distance, 2: its_square}


def affine_fit(power: int) -> Any:
    """(x, weights, size, top, tries) -> scale and minimum of each part."""
    lost = LOSSES[power]

    @inner
    def affine(x, weights, size, top, tries):
        low, high = zero(f32x16), at(x, 0)
        total, first = zero(f32x16), zero(f32x16)
        for j in range(size):
            value, weight = at(x, j), at(weights, j)
            low, high = where(value < low, value, low), where(value > high, value, high)
            total = total + weight
            first = first + weight * value
        scale, lowest, best = (high - low) / np.float32(top), low, zero(f32x16)
        each = inverse(scale)
        for j in range(size):
            value = at(x, j)
            q = nearest((value - low) * each, 0, top)
            best = best + at(weights, j) * lost(scale * q + lowest - value)
        for target in tries:
            each = quotient(splat(f32x16, target), high - lowest)
            one, two, along = zero(f32x16), zero(f32x16), zero(f32x16)
            for j in range(size):
                value = at(x, j)
                q = nearest((value - lowest) * each, 0, top)
                weighted = at(weights, j) * q
                one = one + weighted
                two = two + weighted * q
                along = along + weighted * value
            spread = total * two - one * one
            fitted = quotient(total * along - first * one, spread)
            shift = quotient(two * first - one * along, spread)
            above = shift > ZERO
            fitted = where(above, quotient(along, two), fitted)
            shift = where(above, zero(f32x16), shift)
            found = zero(f32x16)
            for j in range(size):
                value = at(x, j)
                q = nearest((value - lowest) * each, 0, top)
                found = found + at(weights, j) * lost(fitted * q + shift - value)
            better = both(both(spread > ZERO, fitted > ZERO), found < best)
            best = where(better, found, best)
            scale, lowest = where(better, fitted, scale), where(better, shift, lowest)
        return scale + ZERO, ZERO - lowest  # of two zeros the positive one

    return affine


def affine_parts_fit(power: int) -> Any:
    """(x, weights, size, parts, top, most, tries, halves, d, m, scales, minima): the float16s of
    each block's d and dmin to `halves`, and d, dmin and the integers of each part."""
    affine, lost = affine_fit(power), LOSSES[power]

    @inner
    def affine_parts(x, weights, size, parts, top, most, tries, halves, d, m, scales, minima):
        fitted, lowest = affine(x, weights, size, top, tries)
        store(scales, 0, fitted)
        store(minima, 0, lowest)
        for block in range(LANES // parts):
            largest, deepest = scales[block * parts], minima[block * parts]
            for p in range(block * parts, (block + 1) * parts):
                largest, deepest = max(largest, scales[p]), max(deepest, minima[p])
            put_half(halves, 4 * block, largest / np.float32(most))
            put_half(halves, 4 * block + 2, deepest / np.float32(most))
            for p in range(block * parts, (block + 1) * parts):
                d[p], m[p] = half_at(halves, 4 * block), half_at(halves, 4 * block + 2)
        step_of, low_of = at(d, 0), at(m, 0)
        first = nearest(fitted * inverse(step_of), 0, most)
        second = nearest(lowest * inverse(low_of), 0, most)
        best, chosen, other = splat(f32x16, INFINITY), first, second
        for step in STEPS:
            for shift in STEPS:
                trial = within(first + np.float32(step), ZERO, np.float32(most))
                beside = within(second + np.float32(shift), ZERO, np.float32(most))
                scale, low = step_of * trial, low_of * beside
                rate, error = inverse(scale), zero(f32x16)
                for j in range(size):
                    value = at(x, j)
                    off = scale * nearest((value + low) * rate, 0, top) - low - value
                    error = error + at(weights, j) * lost(off)
                better = error < best
                best, chosen = where(better, error, best), where(better, trial, chosen)
                other = where(better, beside, other)
        store(scales, 0, chosen)
        store(minima, 0, other)

    return affine_parts
