"""Laws of root-mean-square normalisation."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from conformance.kernel.here import each, inputs_of, run

WIDTHS = (1, 31, 33, 2048)


def rows(seed: int, hidden: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((7, hidden), np.float32)


@each("rms_norm")
@pytest.mark.parametrize("hidden", WIDTHS)
def test_the_mean_square_becomes_one(kernel, hidden):
    """With unit weights and no eps, every row has a root mean square of 1."""
    out = run(kernel, x=rows(0, hidden), weight=np.ones(hidden, np.float32), eps=0.0)
    assert_allclose(np.mean(out.astype(np.float64) ** 2, axis=1), 1, rtol=1e-6)


@each("rms_norm")
@pytest.mark.parametrize("factor", [2.0**-30, 2.0**30])
def test_size_does_not_matter(kernel, factor):
    """Without eps, a row scaled by a power of two gives the same bits."""
    x, weight = rows(1, 129), rows(2, 129)[0]
    scaled = run(kernel, x=x * np.float32(factor), weight=weight, eps=0.0)
    assert_array_equal(scaled, run(kernel, x=x, weight=weight, eps=0.0))


@each("rms_norm")
def test_eps_rules_where_the_row_is_small(kernel):
    """A row far below eps is divided by sqrt(eps), and zeros stay zeros."""
    x = rows(3, 64) * np.float32(2.0**-40)
    out = run(kernel, x=x, weight=np.ones(64, np.float32), eps=2.0**-20)
    assert_array_equal(out, x * np.float32(2.0**10))
    zeros = run(kernel, x=np.zeros((2, 64), np.float32), weight=np.ones(64, np.float32), eps=1e-6)
    assert_array_equal(zeros, 0)


@each("rms_norm")
def test_signs_pass_through(kernel):
    """The norm of -x is minus the norm of x, bit for bit."""
    inputs = inputs_of(kernel, tokens=7, hidden=127)
    assert_array_equal(run(kernel, **{**inputs, "x": -inputs["x"]}), -run(kernel, **inputs))


@each("rms_norm")
def test_a_token_is_alone(kernel):
    """Tokens in a batch are normalised as they are one by one, bit for bit."""
    inputs = inputs_of(kernel, tokens=7, hidden=2048)
    together = run(kernel, **inputs)
    for t in range(7):
        one = {**inputs, "x": inputs["x"][t : t + 1]}
        assert_array_equal(run(kernel, **one), together[t : t + 1])
