"""Scales that make a block's weighted error small, by trying some and fitting each once more.

Sums are float32 chains over a block's elements in order, so that every implementation finds the
same integers.
"""

from collections.abc import Sequence

import numpy as np

from reference.formats.format import Floats, inverse

ZERO = np.float32(0)


def chain(terms: Floats) -> Floats:
    """The sum over the last axis, element after element."""
    total = terms[..., 0].copy()
    for j in range(1, terms.shape[-1]):
        total += terms[..., j]
    return total


def nearest(x: Floats, low: int, high: int) -> Floats:
    """Rounded to even, within [low, high]; float32."""
    return np.rint(x).clip(np.float32(low), np.float32(high))


def quotient(a: Floats, b: Floats) -> Floats:
    """a / b, and 0 where b is 0."""
    return np.where(b == 0, ZERO, a / np.where(b == 0, np.float32(1), b))


def extreme(x: Floats) -> Floats:
    """The element of largest magnitude, the first if there are several: [..., k] -> [...]."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)[..., 0]


def symmetric(x: Floats, weights: Floats, half: int, tries: Sequence[float]) -> Floats:
    """The scale by which integers in [-half, half) come nearest to x. [..., k] -> [...].

    For a choice of integers q the best scale is sum wqx / sum wq^2, and what it explains of the
    squares is (sum wqx)^2 / sum wq^2. Each try takes the extreme element to -(half + try).
    """
    peak, best = extreme(x), np.zeros(x.shape[:-1], np.float32)
    scale = best
    for step in tries:
        q = nearest(
            x * quotient(np.asarray(-(half + step), np.float32), peak)[..., None], -half, half - 1
        )
        along, square = chain(weights * q * x), chain(weights * q * q)
        explained = quotient(along * along, square)
        better = explained > best
        best = np.where(better, explained, best)
        scale = np.where(better, quotient(along, square), scale)
    return scale


def affine(
    x: Floats, weights: Floats, top: int, tries: Sequence[float], power: int
) -> tuple[Floats, Floats]:
    """The scale and the minimum by which scale * q - minimum, q in 0 .. top, come nearest to x, in
    the sum of weights times |error|^power. [..., k] -> [...] twice, neither negative.

    Each try takes the range to top + try steps; for its integers, least squares give the pair.
    """
    low, high = np.minimum(x.min(axis=-1), ZERO), x.max(axis=-1)
    wide = (high - low).astype(np.float32)
    total, first = chain(weights), chain(weights * x)

    def error(scale: Floats, lowest: Floats, q: Floats) -> Floats:
        off = np.abs(scale[..., None] * q + lowest[..., None] - x)
        return chain(weights * (off * off if power == 2 else off))

    scale, lowest = wide / np.float32(top), low
    best = error(scale, lowest, nearest((x - low[..., None]) * inverse(scale)[..., None], 0, top))
    for step in tries:
        each = quotient(np.asarray(top + step, np.float32), wide)
        q = nearest((x - low[..., None]) * each[..., None], 0, top)
        one, two, along = chain(weights * q), chain(weights * q * q), chain(weights * q * x)
        spread = total * two - one * one
        fitted = quotient(total * along - first * one, spread)
        shift = quotient(two * first - one * along, spread)
        above = shift > 0
        fitted, shift = np.where(above, quotient(along, two), fitted), np.where(above, ZERO, shift)
        found = error(fitted, shift, q)
        better = (spread > 0) & (fitted > 0) & (found < best)
        best = np.where(better, found, best)
        scale, lowest = np.where(better, fitted, scale), np.where(better, shift, lowest)
    return np.asarray(scale), np.asarray(ZERO - lowest)
