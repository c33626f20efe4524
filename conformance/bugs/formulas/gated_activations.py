"""Planted bugs of gated_activations."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference import activations, gated_activations
from reference.gated_activations import drelu, reglu, swiglu_oai
from reference.op import Array


def square_with_sign(x: Array) -> Array:
    return x * np.abs(x)


def up_without_one(gate: Array, up: Array, alpha: float, limit: float) -> Array:
    raised = swiglu_oai(gate, up, alpha, limit)
    return raised - swiglu_oai(gate, np.zeros_like(up), alpha, limit)


def limited_behind(gate: Array, up: Array, alpha: float, limit: float) -> Array:
    activated = swiglu_oai(gate, np.zeros_like(up), alpha, np.inf)
    return np.minimum(activated, limit) * (np.clip(up, -limit, limit) + 1.0)


BUGS = (
    *in_python("swiglu", swiglu_exchanged=lambda gate, up: gated_activations.swiglu(up, gate)),
    *in_python("geglu", geglu_by_silu=lambda gate, up: gated_activations.swiglu(gate, up)),
    *in_python("reglu", drelu),
    *in_python(
        "squared_reglu",
        reglu,
        reglu_squared=lambda gate, up: gated_activations.reglu(gate, up) ** 2,
        squared_reglu_with_sign=lambda gate, up: square_with_sign(gate) * up,
    ),
    *in_python("drelu", reglu, drelu_of_the_product=lambda gate, up: activations.relu(gate * up)),
    *in_python(
        "swiglu_oai",
        up_without_one,
        limited_behind,
        gate_limited_below=lambda gate, up, alpha, limit: swiglu_oai(
            np.maximum(gate, -limit), up, alpha, limit
        ),
        up_not_limited_below=lambda gate, up, alpha, limit: (
            swiglu_oai(gate, np.zeros_like(up), alpha, limit) * (np.minimum(up, limit) + 1.0)
        ),
        zero_is_no_limit=changed(swiglu_oai, limit=lambda limit: limit or np.inf),
        alpha_of_gpt_oss=changed(swiglu_oai, alpha=1.702),
    ),
)
