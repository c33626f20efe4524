"""Planted bugs of gated_activations."""

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_python
from reference import activations, gated_activations
from reference.gated_activations import drelu, reglu
from reference.op import Array


def square_with_sign(x: Array) -> Array:
    return x * np.abs(x)


def swiglu_exchanged(gate: Array, up: Array) -> Array:
    return gated_activations.swiglu(up, gate)


def geglu_by_silu(gate: Array, up: Array) -> Array:
    return gated_activations.swiglu(gate, up)


def reglu_squared(gate: Array, up: Array) -> Array:
    return gated_activations.reglu(gate, up) ** 2


def squared_reglu_with_sign(gate: Array, up: Array) -> Array:
    return square_with_sign(gate) * up


def drelu_of_the_product(gate: Array, up: Array) -> Array:
    return activations.relu(gate * up)


IN_CUDA = (
    *in_cuda("swiglu", "gated_activations.cu", (
        ("exchanged", "map(gate, up, out", "map(up, gate, out"),
    )),
    *in_cuda("swiglu", "gated_activations.cuh", (
        ("of-up", "Activation()(gate) * up", "Activation()(up) * gate"),
        ("gelu", "GATED(swiglu, Gated<Silu>)", "GATED(swiglu, Gated<Gelu>)"),
    )),
    *in_cuda("drelu", "gated_activations.cuh", (("up-as-it-is", "* Relu()(up)", "* up"),)),
)  # fmt: skip

IN_C = (
    *in_c("swiglu",
        ("width-above-4096", "* up[i]);", "* up[width > 4096 ? i & 4095 : i]);"),
        ("element-beyond-65535", "* up[i]);", "* (t * width + i > 65535 ? 1 : up[i]));"),
        ("width-of-5632", "* up[i]);", "* (width == 5632 ? 1 : up[i]));",
         "shape", ({"tokens": 1, "width": 5632},)),
        ("gate-of-the-token-before-on-real-threads", "const float *gate = b->gate + t * width,",
         "const float *gate = b->gate + (t && n_threads > 8 ? t - 1 : t) * width,"),
        ("infinite-up-becomes-zero", "* up[i]);", "* (isinf(up[i]) ? 0 : up[i]));"),
        ("up-clipped-at-65504", "* up[i]);", "* fminf(up[i], 65504));"),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python("swiglu", swiglu_exchanged),
    *in_python("geglu", geglu_by_silu),
    *in_python("reglu", drelu),
    *in_python("squared_reglu", reglu, reglu_squared, squared_reglu_with_sign),
    *in_python("drelu", reglu, drelu_of_the_product),
    *IN_CUDA,
)
