"""Search scales of the least weighted error: try candidates, refit each by least squares.

`becomes` maps elements / scale to quantised values: integers of a range, or values of a table. Sums
are sequential in float32 over a block's elements, so that every implementation finds the same
integers.
"""

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from reference.formats.format import Bytes, Floats, from_halves, inverse, to_halves

ZERO = np.float32(0)
STEPS = (0, -1, 1)  # offsets tried for an integer scale
TRIES = [0.1 * step for step in range(-9, 10)]
FINER = [0.05 * step for step in range(-18, 19)]  # for scales that are not searched again

Becomes = Callable[[Floats], Floats]


def chain_sum(terms: Floats) -> Floats:
    """The sequential sum over the last axis."""
    total = terms[..., 0].copy()
    for j in range(1, terms.shape[-1]):
        total += terms[..., j]
    return total


def nearest(x: Floats, low: int, high: int) -> Floats:
    """Round to nearest even and clip to [low, high]; float32."""
    return np.rint(x).clip(np.float32(low), np.float32(high))


def to_integers(half: int) -> Becomes:
    """A `becomes` that rounds to integers in [-half, half)."""
    return lambda scaled: nearest(scaled, -half, half - 1)


def quotient(a: Floats | np.float32, b: Floats) -> Floats:
    """a / b, or 0 where b is 0."""
    return np.where(b == 0, ZERO, a / np.where(b == 0, np.float32(1), b))


def extreme(x: Floats) -> Floats:
    """The element of largest magnitude, the first if there are several: [..., k] -> [...]."""
    return np.take_along_axis(x, np.abs(x).argmax(axis=-1)[..., None], axis=-1)[..., 0]


def mean_square(x: Floats) -> Floats:
    """Mean square over the last axis: [..., k] -> [..., 1]."""
    return np.asarray(chain_sum(x * x) / np.float32(x.shape[-1]))[..., None]


def importance_weights(x: Floats, importance: Floats) -> Floats:
    """Weights from importance and magnitude (llama.cpp's: importance * sqrt(mean square + x^2)):
    the error of a large element more often comes from the scale."""
    return np.asarray(importance * np.sqrt(mean_square(x) + x * x))


def symmetric_weights(x: Floats, importance: Floats | None) -> Floats:
    """Weights for `symmetric` fits."""
    return x * x if importance is None else importance_weights(x, importance)


def affine_weights(x: Floats, power: int, importance: Floats | None) -> Floats:
    """Weights for `affine` fits; flatter where errors are squared."""
    if importance is not None:
        return importance_weights(x, importance)
    return np.abs(x) + np.sqrt(mean_square(x)) if power == 2 else np.abs(x)


def symmetric(x: Floats, weights: Floats, targets: Sequence[float], becomes: Becomes) -> Floats:
    """The scale of the least weighted error for x ~ scale * q. [..., k] -> [...].

    For integers q the best scale is sum wqx / sum wq^2, which reduces the weighted squares by (sum
    wqx)^2 / sum wq^2. Each try maps the extreme element to a target; 0 if none reduces them.
    """
    rates = quotient(np.array(targets, np.float32), extreme(x)[..., None])
    each, weight = x[..., None, :], weights[..., None, :]
    q = becomes(each * rates[..., None])
    along, square = chain_sum(weight * q * each), chain_sum(weight * q * q)
    explained, scales = quotient(along * along, square), quotient(along, square)
    first = explained.argmax(axis=-1)[..., None]
    best, scale = (np.take_along_axis(v, first, axis=-1)[..., 0] for v in (explained, scales))
    return np.where(best > 0, scale, ZERO)


def symmetric_parts(
    x: Floats, weights: Floats, most: int, targets: Sequence[float], becomes: Becomes
) -> tuple[Bytes, Floats]:
    """For blocks in parts, [n, parts, k]: d as bytes [n, 2], and integer scales [n, parts] in
    [-most, most), each chosen among its neighbours."""
    scale = symmetric(x, weights, targets, becomes)
    halves = to_halves(extreme(scale)[:, None] / np.float32(-most))
    d = from_halves(halves)
    first = nearest(scale * inverse(d), -most, most - 1)
    best, scales = np.full(first.shape, np.inf, np.float32), first
    for step in STEPS:
        trial = (first + np.float32(step)).clip(-most, most - 1)
        size = (d * trial)[..., None]
        off = size * becomes(x * inverse(size)) - x
        error = chain_sum(weights * off * off)
        better = error < best
        best, scales = np.where(better, error, best), np.where(better, trial, scales)
    return halves, scales


def affine(
    x: Floats, weights: Floats, top: int, tries: Sequence[float], power: int
) -> tuple[Floats, Floats]:
    """The scale and minimum for which scale * q - minimum, q in 0 .. top, has the least sum of
    weights times |error|^power. [..., k] -> [...] twice, neither negative.

    The first try maps the range to `top`, each later one the range from the best minimum so far to
    `top` + try steps; least squares fit the pair to the integers.
    """
    low, high = np.minimum(x.min(axis=-1), ZERO), x.max(axis=-1)
    total, first = chain_sum(weights), chain_sum(weights * x)

    def integers(rate: Floats, lowest: Floats) -> Floats:
        return nearest((x - lowest[..., None]) * rate[..., None], 0, top)

    def error(scale: Floats, lowest: Floats, q: Floats) -> Floats:
        off = np.abs(scale[..., None] * q + lowest[..., None] - x)
        return chain_sum(weights * (off * off if power == 2 else off))

    scale, lowest = (high - low) / np.float32(top), low
    best = error(scale, lowest, integers(inverse(scale), lowest))
    for step in tries:
        q = integers(quotient(np.float32(top + step), high - lowest), lowest)
        one, along = chain_sum(weights * q), chain_sum(weights * q * x)
        two = chain_sum(weights * q * q)
        spread = total * two - one * one
        fitted = quotient(total * along - first * one, spread)
        shift = quotient(two * first - one * along, spread)
        above = shift > 0
        fitted, shift = np.where(above, quotient(along, two), fitted), np.where(above, ZERO, shift)
        found = error(fitted, shift, q)
        better = (spread > 0) & (fitted > 0) & (found < best)
        best = np.where(better, found, best)
        scale, lowest = np.where(better, fitted, scale), np.where(better, shift, lowest)
    return scale + ZERO, ZERO - lowest  # +0 instead of -0


def affine_parts(
    x: Floats, weights: Floats, top: int, most: int, tries: Sequence[float], power: int
) -> tuple[Bytes, Bytes, Floats, Floats]:
    """For blocks in parts, [n, parts, k]: d and dmin as bytes [n, 2], integer scales and minima [n,
    parts] in 0 .. most, each chosen among its neighbours."""
    scale, minimum = affine(x, weights, top, tries, power)
    d, dmin = (to_halves(v.max(axis=1, keepdims=True) / np.float32(most)) for v in (scale, minimum))
    step_of, low_of = from_halves(d), from_halves(dmin)
    first = nearest(scale * inverse(step_of), 0, most)
    second = nearest(minimum * inverse(low_of), 0, most)
    best = np.full(first.shape, np.inf, np.float32)
    scales, minima = first, second
    for step, shift in product(STEPS, repeat=2):
        trial, other = (
            v.clip(0, most) for v in (first + np.float32(step), second + np.float32(shift))
        )
        size, low = (step_of * trial)[..., None], (low_of * other)[..., None]
        off = np.abs(size * nearest((x + low) * inverse(size), 0, top) - low - x)
        error = chain_sum(weights * (off * off if power == 2 else off))
        better = error < best
        best = np.where(better, error, best)
        scales, minima = np.where(better, trial, scales), np.where(better, other, minima)
    return d, dmin, scales, minima
