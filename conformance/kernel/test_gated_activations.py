"""Laws of the gated activations."""

import numpy as np
from numpy.testing import assert_array_equal

from conformance.kernel.here import HERE, each, inputs_of, run
from reference.table import OPS

ACTIVATION = {
    "swiglu": "silu", "geglu": "gelu", "reglu": "relu", "squared_reglu": "squared_relu",
    "drelu": "relu",
}  # fmt: skip
LINEAR = [op for op in ACTIVATION if op != "drelu"]  # in up


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


@each(*LINEAR)
def test_up_is_linear(kernel):
    """Doubling or negating up doubles or negates the result, bit for bit; zero gives zero."""
    inputs = inputs_of(kernel, tokens=7, width=127)
    out = run(kernel, **inputs)
    for factor in (-1, 0, 2):
        scaled = {**inputs, "up": inputs["up"] * np.float32(factor)}
        assert_array_equal(run(kernel, **scaled), out * np.float32(factor))


@each(*LINEAR)
def test_gate_and_up_are_not_alike(kernel):
    """Exchanging gate and up is another function."""
    inputs = inputs_of(kernel, tokens=7, width=127)
    exchanged = {"gate": inputs["up"], "up": inputs["gate"]}
    assert np.mean(run(kernel, **exchanged) != run(kernel, **inputs)) > 0.5


@each("drelu")
def test_gate_and_up_of_drelu_are_alike(kernel):
    """Exchanging them changes no bit, and either below zero gives zero."""
    inputs = inputs_of(kernel, tokens=7, width=127)
    out = run(kernel, **inputs)
    assert_array_equal(run(kernel, gate=inputs["up"], up=inputs["gate"]), out)
    assert_array_equal(out[(inputs["gate"] <= 0) | (inputs["up"] <= 0)], 0)


@each("squared_reglu")
def test_doubling_the_gate_quadruples(kernel):
    """The square of a power of two rounds nothing."""
    inputs = inputs_of(kernel, tokens=7, width=127)
    doubled = {**inputs, "gate": 2 * inputs["gate"]}
    assert_array_equal(run(kernel, **doubled), 4 * run(kernel, **inputs))
