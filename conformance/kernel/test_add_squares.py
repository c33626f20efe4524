"""Laws of sums of squares."""

import numpy as np

from conformance.kernel.here import each, inputs_of, run
from reference.add_squares import bound


@each("add_squares")
def test_whole_numbers_add_up_exactly(kernel):
    """Squares of integers are what they are, on top of what was there."""
    x = np.float32([[1, -2, 0], [3, 4, 0]])
    before = np.array([100.0, 0, 7])
    assert run(kernel, x=x, before=before).tolist() == [110, 20, 7]


@each("add_squares")
def test_tokens_may_come_in_parts(kernel):
    """Some tokens, then the others, are all at once: the same bits, so batches do not matter."""
    inputs = inputs_of(kernel, tokens=7, hidden=33)
    whole = run(kernel, **inputs)
    for cut in range(8):
        first = run(kernel, x=inputs["x"][:cut], before=inputs["before"])
        assert np.array_equal(run(kernel, x=inputs["x"][cut:], before=first), whole)


@each("add_squares")
def test_order_and_sign_hardly_matter(kernel):
    """Tokens in another order, or turned about, give the same within the bound, no sum shrinks."""
    inputs = inputs_of(kernel, tokens=7, hidden=127)
    out = run(kernel, **inputs)
    other = run(kernel, x=-inputs["x"][::-1].copy(), before=inputs["before"])
    assert (np.abs(other - out) <= 2 * bound(inputs, {"out": out})["out"]).all()
    assert (out >= inputs["before"]).all()
