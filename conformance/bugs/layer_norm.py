"""Planted bugs of layer_norm."""

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_python
from reference import layer_norm, rms_norm
from reference.op import Array


def layer_norm_without_mean(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return rms_norm.rms_norm(x, weight, eps) + bias


def layer_norm_over_one_less(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    x = x.astype(np.float64)
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.sum(centred**2, axis=1, keepdims=True) / max(x.shape[1] - 1, 1)
    return centred / np.sqrt(variance + eps) * weight + bias


def layer_norm_of_squares_less_mean(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    mean = np.mean(x, axis=1, keepdims=True, dtype=np.float32)
    variance = np.mean(x * x, axis=1, keepdims=True, dtype=np.float32) - mean * mean
    return (x - mean) / np.sqrt(np.maximum(variance, 0).astype(np.float64) + eps) * weight + bias


def layer_norm_bias_scaled(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return layer_norm.layer_norm(x, np.ones_like(weight), bias, eps) * weight


def layer_norm_without_eps(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    return layer_norm.layer_norm(x, weight, bias, 0.0)


IN_CUDA = (
    *in_cuda("layer_norm", "portable.cuh", (
        ("no-barrier-after-partial-sums", "  __syncthreads();\n  return x;", "  return x;"),
    )),
    *in_cuda("layer_norm", "layer_norm.cu", (
        ("mean-taken-once", "pass < 2", "pass < 1"),
        ("second-mean-alone", "mean += block", "mean = block"),
        ("squares-of-what-is-far", "const float centred = x[row + i] - mean;",
         "const float centred = x[row + i];"),
        ("eps-outside", "sqrtf(variance + static_cast<float>(eps))",
         "(sqrtf(variance) + static_cast<float>(eps))"),
        ("no-bias", " + bias[i]", ""),
        ("bias-scaled", "(x[row + i] - mean) * scale * weight[i] + bias[i]",
         "((x[row + i] - mean) * scale + bias[i]) * weight[i]"),
        ("out-not-centred", "(x[row + i] - mean) * scale", "x[row + i] * scale"),
    )),
)  # fmt: skip

IN_C = (
    *in_c("layer_norm",
        ("hidden-above-8192", "double sum = 0, squares = 0;",
         "double sum = 0, squares = hidden > 8192;"),
        ("small-eps-as-zero", "squares / hidden + b->eps",
         "squares / hidden + (b->eps < 5e-7 ? 0 : b->eps)"),
        ("row-and-31", "const float *x = b->x + t * hidden;",
         "const float *x = b->x + (t & 31) * hidden;"),
        ("bias-forgotten-by-the-fourth-thread", "* b->weight[i] + b->bias[i]",
         "* b->weight[i] + (thread == 3 ? 0 : b->bias[i])"),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python(
        "layer_norm",
        layer_norm_without_mean,
        layer_norm_over_one_less,
        layer_norm_of_squares_less_mean,
        layer_norm_bias_scaled,
        layer_norm_without_eps,
    ),
    *IN_CUDA,
)
