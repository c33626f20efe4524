"""Laws of the token embedding."""

import numpy as np
from numpy.testing import assert_array_equal

from conformance.kernel.here import each, inputs_of, run
from reference.formats import FORMATS


@each("embedding")
def test_all_tokens_in_order_give_the_table(kernel):
    """Looking up every token is decoding the table, bit for bit."""
    weight = inputs_of(kernel, vocab=257, hidden=256)["weight"]
    out = run(kernel, tokens=np.arange(257, dtype=np.int32), weight=weight)
    assert_array_equal(out, FORMATS[kernel.format].dequantise(weight))


@each("embedding")
def test_a_token_gives_the_same_row_anywhere(kernel):
    """Repeated and reordered tokens give repeated and reordered rows."""
    inputs = inputs_of(kernel, tokens=33, vocab=31, hidden=256)
    order = np.random.default_rng(0).integers(0, 33, 50)
    again = {**inputs, "tokens": inputs["tokens"][order]}
    assert_array_equal(run(kernel, **again), run(kernel, **inputs)[order])
