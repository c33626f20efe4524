"""Special floating-point numbers, comparison of results, and vector formulas over whole arrays."""

from typing import Any

import numpy as np
from numba import njit
from numpy.testing import assert_array_equal

from kernels.cpu.isa.simd import Vector, f32x16, load, store

Array = np.ndarray[Any, np.dtype[Any]]
SPECIAL = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, 3e38, -3e38], np.float32)


def numbers(seed: int, count: int = 1600) -> Array:
    """float32 of every magnitude, some of them special."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(count, np.float32) * 2.0 ** rng.integers(-60, 60, count)
    x[rng.integers(0, count, count // 8)] = rng.choice(SPECIAL, count // 8)
    return x.astype(np.float32)


def same_numbers(got: Array, want: Array) -> None:
    """Assert equal bits, except that any NaN equals any other."""
    number = ~np.isnan(want)
    assert_array_equal(np.isnan(got), ~number)
    assert_array_equal(got[number].tobytes(), want[number].tobytes())


def flush(x: Array) -> Array:
    """Flush subnormal numbers to zeros of their sign."""
    return np.where(np.abs(x) < 2.0**-126, np.copysign(np.float32(0), x), x)


def swept(formula: Any, *inputs: Array, vector: Vector = f32x16, dtype: Any = None) -> Array:
    """A compiled formula of one to three vectors, over whole arrays of the same size, with results
    of `dtype` or the first input's."""
    lanes, count = vector.lanes, len(inputs)

    @njit
    def one(out, a):
        for i in range(0, len(a), lanes):
            store(out, i, formula(load(vector, a, i)))

    @njit
    def two(out, a, b):
        for i in range(0, len(a), lanes):
            store(out, i, formula(load(vector, a, i), load(vector, b, i)))

    @njit
    def three(out, a, b, c):
        for i in range(0, len(a), lanes):
            store(out, i, formula(load(vector, a, i), load(vector, b, i), load(vector, c, i)))

    out = np.zeros(len(inputs[0]), dtype or inputs[0].dtype)
    (one, two, three)[count - 1](out, *inputs)
    return out
