"""Laws of add_squares."""

import numpy as np
from numpy.testing import assert_array_equal

from conformance.kernel.here import each, inputs_of, run


@each("add_squares")
def test_nothing_adds_nothing(kernel):
    """Without tokens, or with zeros, the sums stay as they are."""
    inputs = inputs_of(kernel, tokens=3, hidden=40)
    for x in (inputs["x"][:0], np.zeros_like(inputs["x"])):
        assert_array_equal(run(kernel, **{**inputs, "x": x}), inputs["before"])


@each("add_squares")
def test_tokens_may_come_in_turns(kernel):
    """Some tokens, then the others, give the bits of all at once."""
    inputs = inputs_of(kernel, tokens=9, hidden=67)
    x, sums = inputs["x"], inputs["before"]
    for first in range(0, 9, 4):
        sums = run(kernel, x=x[first : first + 4], before=sums)
    assert_array_equal(sums, run(kernel, **inputs))


@each("add_squares")
def test_signs_do_not_count(kernel):
    inputs = inputs_of(kernel, tokens=5, hidden=33)
    assert_array_equal(run(kernel, **{**inputs, "x": -inputs["x"]}), run(kernel, **inputs))


@each("add_squares")
def test_not_a_number_stays_in_its_column(kernel):
    """A column that met one has no sum; the others keep theirs."""
    inputs = inputs_of(kernel, tokens=5, hidden=33)
    x = inputs["x"].copy()
    x[2, 7] = np.nan
    found, expected = run(kernel, **{**inputs, "x": x}), run(kernel, **inputs)
    assert np.isnan(found[7])
    assert_array_equal(np.delete(found, 7), np.delete(expected, 7))
