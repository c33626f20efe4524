"""Vectors by the dozen: each intrinsic against NumPy."""

import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_array_equal

from kernels.cpu.simd import f32x16, load, store
from kernels.cpu.simd_shuffle import (
    first_lanes,
    fma_rows,
    gather_quarters,
    load_rows,
    stack,
    store_rows,
    transpose_quarters,
)
from kernels.cpu.tiles import zeros


@njit
def squares_transposed(matrix, out):
    a, b, c, d = load_rows(zeros(f32x16, 4), matrix, 0, 16)
    store_rows(out, 0, 16, transpose_quarters(a, b, c, d))


@njit
def quarters_gathered(matrix, out):
    a, b, c, d = load_rows(zeros(f32x16, 4), matrix, 0, 16)
    store_rows(out, 0, 16, gather_quarters(a, b, c, d))


def bits() -> np.ndarray:
    """Sixty-four different floats, one of them NaN."""
    matrix = np.arange(64, dtype=np.float32)
    matrix[27] = np.nan
    return matrix


def test_four_rows_become_columns_by_squares():
    """Vector i has columns i, 4 + i, 8 + i and 12 + i of four rows, NaN and all."""
    matrix, out = bits(), np.empty(64, np.float32)
    squares_transposed(matrix, out)
    by_column = matrix.reshape(4, 4, 4).transpose(2, 1, 0)
    assert_array_equal(out.reshape(4, 4, 4), by_column)


def test_quarters_are_gathered():
    """Vector i has quarter i of each of four vectors."""
    matrix, out = bits(), np.empty(64, np.float32)
    quarters_gathered(matrix, out)
    assert_array_equal(out.reshape(4, 4, 4), matrix.reshape(4, 4, 4).transpose(1, 0, 2))


@njit
def outer(a, b, stride, out):
    sums = load_rows(zeros(f32x16, 3), out, 2, 40)
    store_rows(out, 2, 40, fma_rows(sums, load(f32x16, a, 1), b, 1, stride))


@pytest.mark.parametrize("stride", [1, 7])
def test_rows_are_loaded_added_to_and_stored(stride):
    """load_rows, fma_rows and store_rows touch just their rows, at any stride."""
    rng = np.random.default_rng(stride)
    a, b = rng.integers(-9, 9, 17).astype(np.float32), rng.integers(-9, 9, 16).astype(np.float32)
    before = rng.integers(-9, 9, (3, 40)).astype(np.float32)
    out = before.copy()
    outer(a, b, stride, out.reshape(-1))
    before[:, 2:18] += np.outer(b[1 : 2 + 2 * stride : stride], a[1:])
    assert_array_equal(out, before)


@njit
def sums_by_way_of_the_stack(x):
    small, large = stack(np.int32, 3), stack(np.float32, 1000)
    for i in range(3):
        small[i] = i
    for i in range(1000):
        large[i] = x[i]
    total = np.float32(0)
    for i in range(1000):
        total += large[999 - i]
    addresses = small.ctypes.data % 64 + large.ctypes.data % 64
    return total, small[0] + 10 * small[1] + 100 * small[2], addresses, len(large)


def test_the_stack_holds_arrays():
    """They keep what is written, do not overlap, and begin on a cache line."""
    x = np.arange(1000, dtype=np.float32)
    assert sums_by_way_of_the_stack(x) == (x.sum(), 210, 0, 1000)


@njit
def first_of(a, b, count, out):
    store(out, 0, first_lanes(load(f32x16, a, 0), count, load(f32x16, b, 0)))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 99])
def test_first_lanes_are_kept(count):
    """Lanes below the count come from one vector, the rest from the other, NaN too."""
    a, b = np.arange(16, dtype=np.float32), np.full(16, np.nan, np.float32)
    out = np.empty(16, np.float32)
    first_of(a, b, count, out)
    assert_array_equal(out, np.where(np.arange(16) < count, a, b))
