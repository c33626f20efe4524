"""Laws of the activations."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from conformance.kernel.here import each, run

SWEEP = np.linspace(-20, 20, 40001, dtype=np.float32)[None]


def one(kernel, value: float) -> float:
    return float(run(kernel, x=np.array([[value]], np.float32))[0, 0])


@each("silu", "gelu", "gelu_erf", "relu", "squared_relu")
def test_zero_stays_zero(kernel):
    """act(0) is 0."""
    assert one(kernel, 0.0) == 0


@each("silu", "gelu", "gelu_erf", "relu", "squared_relu")
@pytest.mark.parametrize("value", [100.0, 1e4, 1e18])
def test_far_from_zero_they_are_the_identity_or_nothing(kernel, value):
    """Large values pass (squared by squared_relu), large negative ones vanish, none overflows."""
    passed = np.float32(value) ** 2 if kernel.op == "squared_relu" else np.float32(value)
    assert_allclose(one(kernel, value), passed, rtol=2**-23)
    assert abs(one(kernel, -value)) <= 1e-30


@each("silu", "gelu", "gelu_erf", "relu")
@given(st.floats(-60, 60, width=32))
def test_the_odd_part_is_half_of_x(kernel, x):
    """act(x) - act(-x) = x, as sigmoid(x) + sigmoid(-x) = 1 demands."""
    assert one(kernel, x) - one(kernel, -x) == pytest.approx(x, rel=1e-6, abs=1e-37)


@each("relu")
def test_relu_is_idempotent(kernel):
    """relu(relu(x)) = relu(x), bit for bit."""
    once = run(kernel, x=SWEEP)
    assert_array_equal(run(kernel, x=once), once)


@each("squared_relu")
def test_squared_relu_is_the_square_of_relu(kernel):
    """The square of what relu keeps, rounded once."""
    kept = np.maximum(SWEEP, 0)
    assert_array_equal(run(kernel, x=SWEEP), kept * kept)


@each("gelu")
def test_gelu_is_close_to_the_exact_form(kernel):
    """The tanh form stays within 5e-4 of x * Phi(x), and is not that form."""
    x = np.ascontiguousarray(SWEEP[:, ::40])
    exact = np.array([[v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x[0].tolist()]])
    off = np.abs(run(kernel, x=x) - exact)
    assert 1e-4 < off.max() < 5e-4


@each("gelu_erf")
def test_the_tail_keeps_its_digits(kernel):
    """Far below zero x * Phi(x) is what its asymptotic series says, to the first term left out."""
    for x in (-6.0, -9.0, -12.0):
        leading = -math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        series = 1 - x**-2 + 3 * x**-4 - 15 * x**-6
        assert one(kernel, x) == pytest.approx(leading * series, rel=105 * x**-8 + 2e-5)


@each("silu", "gelu", "gelu_erf", "relu", "squared_relu")
def test_they_rise_where_x_is_positive(kernel):
    """On the positive side a larger x never gives a smaller result."""
    assert (np.diff(run(kernel, x=np.ascontiguousarray(SWEEP[:, 20000:]))) >= 0).all()


@each("silu", "gelu", "gelu_erf", "relu", "squared_relu")
def test_an_element_does_not_see_its_place(kernel):
    """Wherever an element stands in the array it gives the same bits."""
    x = np.ascontiguousarray(SWEEP[:, ::37])
    out = run(kernel, x=x)
    for shift in (1, 7, 16, 33):
        moved = run(kernel, x=np.roll(x, shift, axis=1))
        assert_array_equal(moved, np.roll(out, shift, axis=1))
