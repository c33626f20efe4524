"""Laws of the plain arithmetic, which float32 rounds only once."""

import numpy as np
from numpy.testing import assert_array_equal

from conformance.kernel.here import HERE, each, inputs_of, run


@each("add")
def test_add_is_float32_addition(kernel):
    """x + y is what IEEE 754 says, whichever comes first, and x + 0 is x."""
    inputs = inputs_of(kernel, tokens=7, width=127, values="spiky")
    x, y = inputs["x"], inputs["y"]
    assert_array_equal(run(kernel, x=x, y=y), x + y)
    assert_array_equal(run(kernel, x=y, y=x), x + y)
    assert_array_equal(run(kernel, x=x, y=np.zeros_like(x)), x)


@each("add_bias")
def test_a_bias_is_added_to_every_token(kernel):
    """add_bias is add with the bias repeated, bit for bit."""
    add = next(k for k in HERE if k.op == "add")
    x, bias = inputs_of(kernel, tokens=7, width=127).values()
    repeated = np.tile(bias, (7, 1))
    assert_array_equal(run(kernel, x=x, bias=bias), run(add, x=x, y=repeated))


@each("scale")
def test_scale_is_float32_multiplication(kernel):
    """factor * x is what IEEE 754 says of the factor in float32; 1 changes nothing."""
    x = inputs_of(kernel, tokens=7, width=127, values="spiky")["x"]
    for factor in (1.0, -2.0, 0.1, 0.0):
        assert_array_equal(run(kernel, x=x, factor=factor), x * np.float32(factor))
