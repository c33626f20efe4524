"""Kinds of input values, from ordinary to awkward: functions of rng and dims -> float32 array."""

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]


def normal(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    return rng.standard_normal(dims, dtype=np.float32)


def large(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    return normal(rng, dims) * np.float32(2.0**12)


def tiny(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    return normal(rng, dims) * np.float32(2.0**-40)


def spiky(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Mostly small, with outliers a thousand times larger, as in activations of LLMs."""
    spikes = rng.random(dims) < 0.03
    return np.where(spikes, np.float32(1000), np.float32(1)) * normal(rng, dims)


def zeros(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Zeros of both signs."""
    return np.where(rng.random(dims) < 0.3, np.float32(-0.0), np.float32(0))


def equal(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """All elements equal: ties everywhere."""
    return np.full(dims, rng.standard_normal(), np.float32)


def signs(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """+1 and -1 at random: sums cancel."""
    return rng.choice(np.array([-1, 1], np.float32), dims)


def ties(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Halfway between numbers of int8, four bits, bfloat16 and float16, 32 elements for each."""
    steps, step = np.array([254, 16, 511, 4095]), np.array([0.5, 0.5, 1, 1], np.float32)
    kind = np.arange(np.prod(dims, dtype=np.int64)).reshape(dims) // 32 % 4
    whole = rng.integers(-steps[kind], steps[kind], endpoint=True)
    whole = np.where(rng.random(dims) < 0.1, -steps[kind], whole)
    return step[kind] * whole.astype(np.float32)


def subnormal(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Below float32's normal range, with zeros of both signs among them."""
    steps = rng.integers(-(2**23), 2**23, dims).astype(np.float64) * 2.0**-149
    return np.where(rng.random(dims) < 0.1, np.copysign(0, steps), steps).astype(np.float32)


def faint(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """In float16's subnormal range, where scales of blocks lose bits or vanish."""
    return normal(rng, dims) * np.float32(2.0**-18)


def edge(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Around and beyond the largest float16, and 127 times it."""
    at = np.array([65472, 65504, 65519, 65520, 65536, 1e5, 2.0**23], np.float32)
    signs = rng.choice(np.array([-1, 1], np.float32), dims)
    return np.where(rng.random(dims) < 0.2, rng.choice(at, dims) * signs, normal(rng, dims))


def cancelling(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Each number is followed by nearly its opposite: sums cancel all but the last bits."""
    x = normal(rng, dims) * np.float32(2.0**10)
    if dims and dims[-1] > 1:
        half = dims[-1] // 2
        x[..., 1 : 2 * half : 2] = -x[..., 0 : 2 * half : 2] * np.float32(1 + 2.0**-20)
    return x


def huge(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """All magnitudes from 2^-40 to 1, which a case scales to the end of the op's domain."""
    size = (2.0 ** -rng.uniform(0, 40, dims)).astype(np.float32)
    size = np.where(rng.random(dims) < 0.05, np.float32(1), size)
    return np.where(rng.random(dims) < 0.5, -size, size)


def infinite(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Ordinary numbers, some infinities of both signs and negative zeros."""
    return scattered(normal(rng, dims), np.array([np.inf, -np.inf, -0.0], np.float32), rng)


def nan(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Ordinary numbers, some of them NaN."""
    return scattered(normal(rng, dims), np.array([np.nan], np.float32), rng)


def scattered(x: Array, odd: Array, rng: np.random.Generator) -> Array:
    """x with `odd` numbers at random places, each at least once if there is room."""
    x = np.where(rng.random(x.shape) < 0.01, rng.choice(odd, x.shape), x)
    places = rng.choice(x.size, min(x.size, len(odd)), replace=False)
    x.flat[places] = rng.permutation(odd)[: len(places)]
    return x


LARGEST = 2.0**40  # default magnitude at the end of an op's domain
VALUES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    kind.__name__: kind
    for kind in (
        normal, large, tiny, spiky, zeros, equal, signs, ties,
        subnormal, faint, edge, cancelling, huge, infinite, nan,
    )
}  # fmt: skip
NOT_FINITE = ("infinite", "nan")
FINITE = tuple(kind for kind in VALUES if kind not in NOT_FINITE)
