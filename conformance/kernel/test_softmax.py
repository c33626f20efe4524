"""Laws of softmax."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from conformance.kernel.here import each, inputs_of, run

WIDTHS = (1, 2, 15, 16, 17, 1000)


def eighths(seed: int, width: int) -> np.ndarray:
    """Values that stay exact when a whole number is added."""
    steps = np.random.default_rng(seed).integers(-80, 80, (2, width))
    return (steps / 8).astype(np.float32)


@each("softmax")
@pytest.mark.parametrize("width", WIDTHS)
def test_a_shift_changes_no_bit(kernel, width):
    """softmax(x + c) is softmax(x)."""
    x = eighths(0, width)
    assert_array_equal(run(kernel, x=x + np.float32(4096)), run(kernel, x=x))


@each("softmax")
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_sum_to_one(kernel, width):
    """Every row is a distribution."""
    out = run(kernel, **inputs_of(kernel, tokens=7, width=width, values="spiky"))
    assert (out >= 0).all()
    assert_allclose(out.sum(axis=1, dtype=np.float64), 1, rtol=1e-6)


@each("softmax")
@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_order_is_kept(kernel, width, seed):
    """What was larger is never less likely."""
    x = eighths(seed, width)
    out = run(kernel, x=x)
    for row, probabilities in zip(x, out, strict=True):
        assert (np.diff(probabilities[np.argsort(row)]) >= 0).all()


@each("softmax")
@pytest.mark.parametrize("width", WIDTHS)
def test_equal_values_share_alike(kernel, width):
    """A row of equal values is uniform, however large they are."""
    for value in (0.0, -3e38, 3e38):
        out = run(kernel, x=np.full((1, width), value, np.float32))
        assert_allclose(out, 1 / width, rtol=1e-6)


@each("softmax")
def test_minus_infinity_is_impossible(kernel):
    """A masked element gets exactly 0 and the rest do not see it."""
    x = eighths(1, 40)
    masked = x.copy()
    masked[:, 20:] = -np.inf
    out = run(kernel, x=masked)
    assert_array_equal(out[:, 20:], 0)
    alone = run(kernel, x=np.ascontiguousarray(x[:, :20]))
    assert_allclose(out[:, :20], alone, rtol=1e-6)


@each("softmax")
def test_a_row_is_alone(kernel):
    """Rows in a batch are as they are one by one, bit for bit."""
    x = inputs_of(kernel, tokens=7, width=127)["x"]
    together = run(kernel, x=x)
    for t in range(7):
        assert_array_equal(run(kernel, x=x[t : t + 1]), together[t : t + 1])
