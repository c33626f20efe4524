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


def best_of(explained: Floats, scales: Floats) -> Floats:
    """Of the last axis' tries the scale that explains most, the first of equals; 0 if none does."""
    first = explained.argmax(axis=-1)[..., None]
    best, scale = (np.take_along_axis(v, first, axis=-1)[..., 0] for v in (explained, scales))
    return np.where(best > 0, scale, ZERO)


def symmetric(x: Floats, weights: Floats, half: int, tries: Sequence[float]) -> Floats:
    """The scale by which integers in [-half, half) come nearest to x. [..., k] -> [...].

    For a choice of integers q the best scale is sum wqx / sum wq^2, and what it explains of the
    squares is (sum wqx)^2 / sum wq^2. Each try takes the extreme element to -(half + try).
    """
    targets = np.array([-(half + step) for step in tries], np.float32)
    rates = quotient(targets, extreme(x)[..., None])
    each, weight = x[..., None, :], weights[..., None, :]
    q = nearest(each * rates[..., None], -half, half - 1)
    along, square = chain(weight * q * each), chain(weight * q * q)
    return best_of(quotient(along * along, square), quotient(along, square))


def affine(
    x: Floats, weights: Floats, top: int, tries: Sequence[float], power: int
) -> tuple[Floats, Floats]:
    """The scale and the minimum by which scale * q - minimum, q in 0 .. top, come nearest to x, in
    the sum of weights times |error|^power. [..., k] -> [...] twice, neither negative.

    The first try takes the range to `top`, each further one to top + try steps; for its integers,
    least squares give the pair.
    """
    low, high = np.minimum(x.min(axis=-1), ZERO)[..., None], x.max(axis=-1)[..., None]
    wide = (high - low).astype(np.float32)
    each, weight = x[..., None, :], weights[..., None, :]
    total, first = chain(weights)[..., None], chain(weights * x)[..., None]

    def error(scale: Floats, lowest: Floats, q: Floats) -> Floats:
        off = np.abs(scale[..., None] * q + lowest[..., None] - each)
        return chain(weight * (off * off if power == 2 else off))

    def integers(rates: Floats) -> Floats:
        return nearest((each - low[..., None]) * rates[..., None], 0, top)

    scale = wide / np.float32(top)
    plain = error(scale, low, integers(inverse(scale)))
    q = integers(quotient(np.array([top + step for step in tries], np.float32), wide))
    one, two, along = chain(weight * q), chain(weight * q * q), chain(weight * q * each)
    spread = total * two - one * one
    fitted = quotient(total * along - first * one, spread)
    shift = quotient(two * first - one * along, spread)
    above = shift > 0
    fitted, shift = np.where(above, quotient(along, two), fitted), np.where(above, ZERO, shift)
    found = np.where((spread > 0) & (fitted > 0), error(fitted, shift, q), np.float32(np.inf))
    errors = np.concatenate([plain, found], axis=-1)
    best = errors.argmin(axis=-1)[..., None]
    scale, lowest = (
        np.take_along_axis(np.concatenate(pair, axis=-1), best, axis=-1)[..., 0]
        for pair in ((scale, fitted), (low, shift))
    )
    return scale, ZERO - lowest
