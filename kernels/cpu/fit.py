"""Scales that make a block's weighted error small, as reference/formats/fit.py finds them: the same
tries, sums and comparisons in the same order, so the same integers."""

import numpy as np
from numba import njit

from kernels.cpu.formats import half_at, put_half
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
def symmetric(x, half, targets):
    peak, best, scale = extreme(x), ZERO, ZERO
    for target in targets:
        each, along, square = quotient(target, peak), ZERO, ZERO
        for value in x:
            q = nearest(value * each, -half, half - 1)
            weighted = value * value * q
            along += weighted * value
            square += weighted * q
        explained = quotient(along * along, square)
        if explained > best:
            best, scale = explained, quotient(along, square)
    return scale


@njit
def index(scaled):
    """The nearest of NL's values, the lower one of two."""
    i = 0
    for middle in MIDDLES:
        if scaled > middle:
            i += 1
    return i


@njit
def codebook(x):
    peak, best, scale = extreme(x), ZERO, ZERO
    for end in ENDS:
        each, along, square = quotient(end, peak), ZERO, ZERO
        for value in x:
            q = np.float32(NL[index(value * each)])
            weighted = value * value * q
            along += weighted * value
            square += weighted * q
        explained = quotient(along * along, square)
        if explained > best:
            best, scale = explained, quotient(along, square)
    return scale


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
