"""Laws of layer normalisation."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from conformance.kernel.here import each, inputs_of, run

WIDTHS = (2, 31, 33, 2048)


def rows(seed: int, hidden: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((7, hidden), np.float32)


def plain(hidden: int) -> dict[str, np.ndarray]:
    return {"weight": np.ones(hidden, np.float32), "bias": np.zeros(hidden, np.float32)}


@each("layer_norm")
@pytest.mark.parametrize("hidden", WIDTHS)
def test_mean_becomes_zero_and_variance_one(kernel, hidden):
    """With unit weights, no bias and no eps, every row has mean 0 and variance 1."""
    out = run(kernel, x=rows(0, hidden), **plain(hidden), eps=0.0).astype(np.float64)
    assert_allclose(out.mean(axis=1), 0, atol=1e-6)
    assert_allclose(out.var(axis=1), 1, rtol=2e-6)


@each("layer_norm")
@pytest.mark.parametrize("factor", [2.0**-30, 2.0**30])
def test_size_does_not_matter(kernel, factor):
    """Without eps, a row scaled by a power of two gives the same bits."""
    given = {"weight": rows(2, 129)[0], "bias": rows(2, 129)[1], "eps": 0.0}
    scaled = run(kernel, x=rows(1, 129) * np.float32(factor), **given)
    assert_array_equal(scaled, run(kernel, x=rows(1, 129), **given))


@each("layer_norm")
@pytest.mark.parametrize("shift", [16.0, -1024.0])
def test_where_the_row_lies_does_not_matter(kernel, shift):
    """Whole numbers moved along by another, exactly, are normalised as before, but for the
    rounding of their means."""
    x = np.random.default_rng(3).integers(-512, 512, (7, 127)).astype(np.float32)
    moved = run(kernel, x=x + np.float32(shift), **plain(127), eps=1e-5)
    assert_allclose(moved, run(kernel, x=x, **plain(127), eps=1e-5), atol=2e-6)


@each("layer_norm")
@pytest.mark.parametrize("value", [0.0, 3.0, -40_000.0])
def test_a_flat_row_becomes_the_bias(kernel, value):
    """Equal elements have no variance: what is left is the bias, bit for bit."""
    bias = rows(4, 64)[0]
    out = run(kernel, x=np.full((2, 64), value, np.float32), weight=rows(5, 64)[0], bias=bias,
              eps=1e-5)  # fmt: skip
    assert_array_equal(out, np.stack([bias, bias]))


@each("layer_norm")
def test_signs_pass_through(kernel):
    """The norm of -x with -bias is minus the norm of x, bit for bit."""
    inputs = inputs_of(kernel, tokens=7, hidden=127)
    turned = {**inputs, "x": -inputs["x"], "bias": -inputs["bias"]}
    assert_array_equal(run(kernel, **turned), -run(kernel, **inputs))


@each("layer_norm")
def test_a_token_is_alone(kernel):
    """Tokens in a batch are normalised as they are one by one, bit for bit."""
    inputs = inputs_of(kernel, tokens=7, hidden=2048)
    together = run(kernel, **inputs)
    for t in range(7):
        one = {**inputs, "x": inputs["x"][t : t + 1]}
        assert_array_equal(run(kernel, **one), together[t : t + 1])
