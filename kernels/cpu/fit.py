"""Scales that make a block's weighted error small, as reference/formats/fit.py finds them: the same
tries, sums and comparisons in the same order, so the same integers."""

from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.fields import half_at, put_half
from reference.formats.codebooks import ENDS, MIDDLES, NL
from reference.formats.superblocks import SYMMETRIC_TRIES

ZERO = np.float32(0)
TARGETS = {h: np.array([-(h + step) for step in SYMMETRIC_TRIES], np.float32) for h in (4, 32)}


@njit(inline="always")
def quotient(a, b):
    return ZERO if b == ZERO else a / b


@njit(inline="always")
def inverse(d):
    return ZERO if d == ZERO else np.float32(1) / d


@njit(inline="always")
def nearest(x, low, high):
    return min(max(np.rint(x), np.float32(low)), np.float32(high))


@njit(inline="always")
def halved(data, offset, value):
    """Write a float16; what was written, as float32."""
    put_half(data, offset, value)
    return half_at(data, offset)


@njit
def extreme(x):
    """The element of largest magnitude, the first if there are several."""
    found = x[0]
    for value in x:
        if abs(value) > abs(found):
            found = value
    return found


@njit
def index(scaled):
    """The nearest of NL's values, the lower one of two."""
    i = 0
    for middle in MIDDLES:
        if scaled > middle:
            i += 1
    return i


def explaining(value_of: Any) -> Any:
    """(x, targets, half) -> the scale that explains most of x's squares; each try takes the extreme
    element to a target, and value_of(scaled, half) is what stands for a scaled element."""

    @njit
    def fit(x, targets, half):
        peak, best, scale = extreme(x), ZERO, ZERO
        for target in targets:
            each, along, square = quotient(target, peak), ZERO, ZERO
            for value in x:
                q = value_of(value * each, half)
                weighted = value * value * q
                along += weighted * value
                square += weighted * q
            explained = quotient(along * along, square)
            if explained > best:
                best, scale = explained, quotient(along, square)
        return scale

    return fit


@njit(inline="always")
def _whole(scaled, half):
    return nearest(scaled, -half, half - 1)


@njit(inline="always")
def _named(scaled, half):
    return np.float32(NL[index(scaled)])


symmetric, _of_table = explaining(_whole), explaining(_named)


@njit
def codebook(x):
    return _of_table(x, ENDS, 0)


@njit(inline="always")
def weight_of(value, mean, power):
    return abs(value) + mean if power == 2 else abs(value)


@njit
def root_mean_square(x):
    total = ZERO
    for value in x:
        total += value * value
    return np.sqrt(total / np.float32(len(x)))


@njit(inline="always")
def loss(off, power):
    return off * off if power == 2 else abs(off)


@njit
def affine(x, mean, top, tries, power):
    """(scale, minimum) of a part."""
    low, high, total, first = min(x[0], ZERO), x[0], ZERO, ZERO
    for value in x:
        low, high = min(low, value), max(high, value)
        weight = weight_of(value, mean, power)
        total += weight
        first += weight * value
    wide = high - low
    scale, lowest = wide / np.float32(top), low
    each, best = inverse(scale), ZERO
    for value in x:
        q = nearest((value - low) * each, 0, top)
        best += weight_of(value, mean, power) * loss(scale * q + lowest - value, power)
    for target in tries:
        each, one, two, along = quotient(target, wide), ZERO, ZERO, ZERO
        for value in x:
            q = nearest((value - low) * each, 0, top)
            weighted = weight_of(value, mean, power) * q
            one += weighted
            two += weighted * q
            along += weighted * value
        spread = total * two - one * one
        fitted = quotient(total * along - first * one, spread)
        shift = quotient(two * first - one * along, spread)
        if shift > ZERO:
            fitted, shift = quotient(along, two), ZERO
        if not (spread > ZERO and fitted > ZERO):
            continue
        found = ZERO
        for value in x:
            q = nearest((value - low) * each, 0, top)
            found += weight_of(value, mean, power) * loss(fitted * q + shift - value, power)
        if found < best:
            best, scale, lowest = found, fitted, shift
    return scale, ZERO - lowest
