"""Vector formulas: every operator compared with NumPy, lane by lane."""

import operator
from typing import Any

import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_array_equal

from conformance.support.special_numbers import SPECIAL, Array, numbers, same_numbers, swept
from kernels.cpu.isa.lanes import alike, both, fabs, root, where, within
from kernels.cpu.isa.simd import round_even

HALVES = np.arange(-40, 40, dtype=np.float32) / 2
EDGES = np.float32([2**22 + 0.5, 2**23 - 0.5, 2**23 + 1, 2**31, -(2**31), 0.49999997, -0.5])


def pairs(seed: int) -> tuple[Array, Array]:
    """Pairs of numbers of every magnitude, including all pairs of special ones."""
    a, b = numbers(seed), numbers(seed + 1)
    one, other = (v.ravel() for v in np.meshgrid(SPECIAL, SPECIAL))
    count = (len(a) + len(one)) // 16 * 16
    return np.concatenate([one, a])[:count], np.concatenate([other, b])[:count]


SCALAR = np.float32(0.3)
ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
COMPARISONS = [operator.lt, operator.gt, operator.eq]


@pytest.mark.parametrize("symbol", ARITHMETIC)
def test_operators(symbol):
    """Operators of two vectors, or of a vector and a number on either side, round once."""
    a, b = pairs(1)
    right, left = (njit(lambda v: symbol(v, SCALAR)), njit(lambda v: symbol(SCALAR, v)))
    with np.errstate(all="ignore"):
        same_numbers(swept(njit(lambda v, w: symbol(v, w)), a, b), symbol(a, b))
        same_numbers(swept(right, a), symbol(a, SCALAR))
        same_numbers(swept(left, a), symbol(SCALAR, a))


def test_no_fused_multiply_add():
    """a * b + c rounds twice: no fused multiply-add."""
    a, b = (np.random.default_rng(s).random(1600, np.float32) for s in (1, 2))
    found = swept(njit(lambda v, w: v * w + v), a, b)
    assert_array_equal(found, a * b + a)
    once = (a.astype(np.float64) * b + a).astype(np.float32)
    assert np.any(found != once)


@pytest.mark.parametrize("symbol", COMPARISONS)
def test_where_selects_by_comparison(symbol):
    """`where` takes the first where the condition holds, otherwise the second, also with NaN."""
    a, b = pairs(3)

    def choose(v: Any, w: Any) -> Any:
        return where(symbol(v, w), v, w)

    def choose_by_number(v: Any) -> Any:
        return where(symbol(v, SCALAR), alike(v, SCALAR), v)

    same_numbers(swept(njit(choose), a, b), np.where(symbol(a, b), a, b))
    same_numbers(swept(njit(choose_by_number), a), np.where(symbol(a, SCALAR), SCALAR, a))


def test_combined_conditions():
    a, b = pairs(5)
    zero, one = np.float32(0), np.float32(1)

    def choose(v: Any, w: Any) -> Any:
        return where(both(v > zero, w < one), v, w)

    same_numbers(swept(njit(choose), a, b), np.where((a > 0) & (b < 1), a, b))


@pytest.mark.parametrize(
    ("operation", "meaning"), [(round_even, np.rint), (fabs, np.abs), (root, np.sqrt)]
)
def test_functions(operation, meaning):
    """round_even breaks ties to even; the root is rounded once."""
    values = np.concatenate([numbers(7), SPECIAL, HALVES, EDGES])
    values = np.resize(values, -(-len(values) // 16) * 16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        same_numbers(swept(njit(lambda v: operation(v)), values), meaning(values))


def test_clamp():
    """Clamp to a range, ends included; NaN becomes the lower end."""
    a, _ = pairs(9)
    low, high = np.float32(-2), np.float32(7)
    found = swept(njit(lambda v: within(v, low, high)), a)
    wanted = np.where(np.isnan(a), low, np.clip(a, low, high))
    same_numbers(found, wanted.astype(np.float32))
