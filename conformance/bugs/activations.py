"""Planted bugs of activations."""

import math

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_python
from reference import activations
from reference.op import Array


def silu_by_quick_gelu(x: Array) -> Array:
    return x * activations.sigmoid(1.702 * x.astype(np.float64))


def silu_by_lines(x: Array) -> Array:
    return x * np.clip(x / 6 + 0.5, 0, 1)


def gelu_by_erf(x: Array) -> Array:
    phi = [0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.ravel().tolist()]
    return x * np.reshape(phi, x.shape)


def gelu_erf_by_tanh(x: Array) -> Array:
    return activations.gelu(x)


def relu_that_leaks(x: Array) -> Array:
    return np.where(x > 0, x, 0.01 * x)


def square_with_sign(x: Array) -> Array:
    return x * np.abs(x)


IN_CUDA = (
    *in_cuda("silu", "activations.cuh", (
        ("other-sign", "x / (1.f + expf(-x))", "x / (1.f + expf(x))"),
        ("no-x", "return x / (1.f + expf(-x))", "return 1.f / (1.f + expf(-x))"),
    )),
    *in_cuda("silu", "activations.cu", (
        ("gelu", "ACTIVATION(silu, Silu)", "ACTIVATION(silu, Gelu)"),
    )),
    *in_cuda("gelu", "activations.cuh", (
        ("cubic-of-ten", "0.044715f", "0.44715f"),
        ("square", "0.044715f * x, x, 1.f", "0.044715f, x, 1.f"),
        ("half-the-argument", "-1.5957691216057308f", "-0.7978845608028654f"),
    )),
    *in_cuda("gelu_erf", "activations.cuh", (
        ("not-halved", "0.5f * erfcf", "erfcf"),
        ("no-root-of-two", "size * 0.70710678118654752f", "size"),
        ("of-x", "erfcf(size *", "erfcf(x *"),
    )),
    *in_cuda("relu", "activations.cuh", (("leaky", "0.f : x", "0.01f * x : x"),)),
    *in_cuda("squared_relu", "activations.cuh", (("signed", "Relu()(x);", "x;"),)),
)  # fmt: skip

IN_C = (
    *in_c("silu",
        ("infinity-becomes-nan", "return x == -INFINITY ? NAN", "return isinf(x) ? NAN"),
        ("element-beyond-65535", "silu(b->x[i])", "silu(b->x[i & 65535])"),
        ("linear-above-20", "return x == -INFINITY", "return x > 4096 ? 4096 : x == -INFINITY"),
        ("zero-below-minus-30", "return x == -INFINITY", "return x < -30 ? 0 : x == -INFINITY"),
        ("table-in-memory", "return x == -INFINITY",
         "static double table[64];\n    const int at = (int)fmin(63, fabs(x));\n    if "
         "(table[at] == 0) table[at] = 1;\n    return x == -INFINITY", "construction"),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python("silu", silu_by_quick_gelu, silu_by_lines),
    *in_python("gelu", gelu_by_erf),
    *in_python("gelu_erf", gelu_erf_by_tanh),
    *in_python("relu", relu_that_leaks),
    *in_python("squared_relu", square_with_sign),
    *IN_CUDA,
)
