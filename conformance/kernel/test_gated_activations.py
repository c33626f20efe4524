"""Laws of the gated activations."""

import numpy as np
from numpy.testing import assert_array_equal

from conformance.kernel.here import HERE, each, inputs_of, run
from reference.table import OPS

ACTIVATION = {"swiglu": "silu", "geglu": "gelu", "reglu": "relu"}


@each(*ACTIVATION)
def test_an_up_of_one_leaves_the_activation(kernel):
    """act(gate) * 1 is what the activation's own kernel of that variant gives, bit for bit; where
    there is none, it is within the activation's bound."""
    activation = OPS[ACTIVATION[kernel.op]]
    gate = inputs_of(kernel, tokens=7, width=127)["gate"]
    out = run(kernel, gate=gate, up=np.ones_like(gate))
    plain = [k for k in HERE if (k.op, k.variant) == (activation.name, kernel.variant)]
    if plain:
        assert_array_equal(out, run(plain[0], x=gate))
    else:
        expected = activation.expected({"x": gate})
        bound = activation.bound({"x": gate}, expected)["out"]
        assert (np.abs(out - expected["out"]) <= bound).all()


@each(*ACTIVATION)
def test_up_is_linear(kernel):
    """Doubling or negating up doubles or negates the result, bit for bit; zero gives zero."""
    inputs = inputs_of(kernel, tokens=7, width=127)
    out = run(kernel, **inputs)
    for factor in (-1, 0, 2):
        scaled = {**inputs, "up": inputs["up"] * np.float32(factor)}
        assert_array_equal(run(kernel, **scaled), out * np.float32(factor))


@each(*ACTIVATION)
def test_gate_and_up_are_not_alike(kernel):
    """Exchanging gate and up is another function."""
    inputs = inputs_of(kernel, tokens=7, width=127)
    exchanged = {"gate": inputs["up"], "up": inputs["gate"]}
    assert np.mean(run(kernel, **exchanged) != run(kernel, **inputs)) > 0.5
