"""Gated activations beside the plain ones."""

import numpy as np
from numpy.testing import assert_array_equal

from conformance.support.here import HERE, each, inputs_of, run
from reference.table import OPS

ACTIVATION = {
    "swiglu": "silu", "geglu": "gelu", "reglu": "relu", "squared_reglu": "squared_relu",
    "drelu": "relu",
}  # fmt: skip


@each(*ACTIVATION)
def test_an_up_of_one_leaves_the_activation(kernel):
    """act(gate) * 1 is what the activation's own kernel of that target and variant gives, bit for
    bit; where there is none, it is within the activation's bound."""
    activation = OPS[ACTIVATION[kernel.op]]
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
