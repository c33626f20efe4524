"""The kinds of values an input may hold, from ordinary to awkward: rng, dims -> float32 array."""

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
    """Mostly small, with outliers a thousand times larger, as activations of LLMs have."""
    spikes = rng.random(dims) < 0.03
    return np.where(spikes, np.float32(1000), np.float32(1)) * normal(rng, dims)


def zeros(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    return np.zeros(dims, np.float32)


def equal(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Every element the same: ties everywhere."""
    return np.full(dims, rng.standard_normal(), np.float32)


def signs(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """+1 and -1 at random: sums cancel."""
    return rng.choice(np.array([-1, 1], np.float32), dims)


def ties(rng: np.random.Generator, dims: tuple[int, ...]) -> Array:
    """Halfway between what int8, four bits, bfloat16 and float16 hold, 32 elements for each."""
    steps, step = np.array([254, 16, 511, 4095]), np.array([0.5, 0.5, 1, 1], np.float32)
    kind = np.arange(np.prod(dims, dtype=np.int64)).reshape(dims) // 32 % 4
    whole = rng.integers(-steps[kind], steps[kind], endpoint=True)
    whole = np.where(rng.random(dims) < 0.1, -steps[kind], whole)
    return step[kind] * whole.astype(np.float32)


VALUES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], Array]] = {
    kind.__name__: kind for kind in (normal, large, tiny, spiky, zeros, equal, signs, ties)
}
