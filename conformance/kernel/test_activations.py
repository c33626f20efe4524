"""Laws of the activations that are searched for a counterexample, and of kernels together."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.kernel.here import HERE, each, inputs_of, run
from reference.table import OPS

GATED = {
    "swiglu": "silu", "geglu": "gelu", "reglu": "relu", "squared_reglu": "squared_relu",
    "drelu": "relu",
}  # fmt: skip


@each("silu", "gelu", "gelu_erf", "relu")
@given(st.floats(-60, 60, width=32))
def test_the_odd_part_is_half_of_x(kernel, x):
    """act(x) - act(-x) = x, as sigmoid(x) + sigmoid(-x) = 1 demands."""
    above, below = run(kernel, x=np.array([[x, -x]], np.float32))[0].tolist()
    assert above - below == pytest.approx(x, rel=1e-6, abs=1e-37)


@each(*GATED)
def test_an_up_of_one_leaves_the_activation(kernel):
    """act(gate) * 1 is what the activation's own kernel of that target and variant gives, bit for
    bit; where there is none, it is within the activation's bound."""
    activation = OPS[GATED[kernel.op]]
    gate = inputs_of(kernel, tokens=7, width=127)["gate"]
    out = run(kernel, gate=gate, up=np.ones_like(gate))
    own = activation.name, kernel.target, kernel.variant
    plain = [k for k in HERE if (k.op, k.target, k.variant) == own]
    if plain:
        assert_array_equal(out, run(plain[0], x=gate))
    else:
        expected = activation.expected({"x": gate})
        bound = activation.bound({"x": gate}, expected)["out"]
        assert (np.abs(out - expected["out"]) <= bound).all()
