"""Laws of int8 activations."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.kernel.here import each, inputs_of
from kernels.call import call
from reference.quantise_activations import dequantise_activations


@each("quantise_activations")
@pytest.mark.parametrize("values", ["normal", "large", "spiky", "equal", "zeros"])
def test_the_error_is_half_a_step(kernel, values):
    """Every element is within half its block's scale, which its largest element sets to 127."""
    x = inputs_of(kernel, tokens=7, hidden=96, values=values)["x"]
    q, scale, total = call(kernel, {"x": x}).values()
    step = np.repeat(scale.astype(np.float64), 32, axis=1)
    assert (np.abs(x - dequantise_activations(q, scale)) <= step * (0.5 + 2**-15)).all()
    largest = np.abs(q.astype(int)).reshape(7, 3, 32).max(axis=2)
    assert_array_equal(largest, np.where(scale > 0, 127, 0))
    assert_array_equal(total, q.reshape(7, 3, 32).sum(axis=2, dtype=np.int32))


@each("quantise_activations")
def test_halves_round_away_from_zero(kernel):
    """0.5, 1.5 and 2.5 become 1, 2 and 3, and their negatives the same below zero."""
    x = np.zeros((1, 32), np.float32)
    x[0, :8] = 127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49
    q, scale, total = call(kernel, {"x": x}).values()
    assert_array_equal(q[0, :8], [127, 1, 2, 3, -1, -2, -3, 0])
    assert scale[0, 0] == 1
    assert total[0, 0] == 127


@each("quantise_activations")
def test_powers_of_two_change_the_scale_alone(kernel):
    """x * 2^k has the same integers and a scale 2^k times as large; -x has the negatives."""
    x = inputs_of(kernel, tokens=7, hidden=64)["x"]
    q, scale, total = call(kernel, {"x": x}).values()
    for factor in (2.0**-20, 2.0**20):
        again = call(kernel, {"x": x * np.float32(factor)})
        assert_array_equal(again["q"], q)
        assert_array_equal(again["scale"], scale * np.float32(factor))
    negative = call(kernel, {"x": -x})
    assert_array_equal(negative["q"], -q)
    assert_array_equal(negative["total"], -total)


@each("quantise_activations")
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_says_so(kernel, poison):
    """Its scale is NaN and its integers are 0; no other block changes a bit."""
    x = inputs_of(kernel, tokens=2, hidden=96)["x"]
    before = call(kernel, {"x": x})
    x[1, 40] = poison
    after = call(kernel, {"x": x})
    assert np.isnan(after["scale"][1, 1])
    assert_array_equal(after["q"][1, 32:64], 0)
    assert after["total"][1, 1] == 0
    others = np.array([[True, True, True], [True, False, True]])
    elements = np.repeat(others, 32, axis=1)
    for name in ("scale", "total"):
        assert_array_equal(after[name][others], before[name][others])
    assert_array_equal(after["q"][elements], before["q"][elements])
