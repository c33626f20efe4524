"""Planted bugs of activations, gated or not."""

import math

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference import activations, gated_activations
from reference.gated_activations import drelu, reglu, swiglu_oai
from reference.op import Array


def gelu_by_erf(x: Array) -> Array:
    phi = [0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.ravel().tolist()]
    return x * np.reshape(phi, x.shape)


def square_with_sign(x: Array) -> Array:
    return x * np.abs(x)


def up_without_one(gate: Array, up: Array, alpha: float, limit: float) -> Array:
    raised = swiglu_oai(gate, up, alpha, limit)
    return raised - swiglu_oai(gate, np.zeros_like(up), alpha, limit)


def limited_behind(gate: Array, up: Array, alpha: float, limit: float) -> Array:
    activated = swiglu_oai(gate, np.zeros_like(up), alpha, np.inf)
    return np.minimum(activated, limit) * (np.clip(up, -limit, limit) + 1.0)


BUGS = (
    *in_python(
        "silu",
        silu_by_quick_gelu=lambda x: x * activations.sigmoid(1.702 * x.astype(np.float64)),
        silu_by_lines=lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    ),
    *in_python("gelu", gelu_by_erf),
    *in_python("gelu_erf", gelu_erf_by_tanh=activations.gelu),
    *in_python("relu", relu_that_leaks=lambda x: np.where(x > 0, x, 0.01 * x)),
    *in_python("squared_relu", square_with_sign=lambda x: x * np.abs(x)),
    *in_python(
        "softplus",
        softplus_above_20=lambda x: np.where(x > 5, x, activations.softplus(x)),
        softplus_by_one_plus=lambda x: np.log(1 + np.exp(np.minimum(x, 80), dtype=np.float32)),
    ),
    *in_python("sigmoid", sigmoid_by_lines=lambda x: np.clip(x / 6 + 0.5, 0, 1)),
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
