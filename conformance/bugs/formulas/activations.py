"""Planted bugs of activations."""

import math

import numpy as np

from conformance.bugs.bug import in_python
from reference import activations
from reference.op import Array


def gelu_by_erf(x: Array) -> Array:
    phi = [0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.ravel().tolist()]
    return x * np.reshape(phi, x.shape)


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
)
