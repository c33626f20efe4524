"""Planted bugs of quantise_activations."""

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_python
from reference.op import Array
from reference.quantise_activations import quantise_activations

Triple = tuple[Array, Array, Array]


def int8_ties_to_even(x: Array) -> Triple:
    q, scale, _ = quantise_activations(x)
    steps = np.repeat(scale, 32, axis=1)
    inverse = np.where(steps > 0, np.float32(1) / steps, 0).astype(np.float32)
    q = np.rint(x * np.where(np.isinf(inverse), 0, inverse)).astype(np.int8)
    return q, scale, q.reshape(*scale.shape, 32).sum(axis=-1)


def int8_over_128(x: Array) -> Triple:
    q, scale, total = quantise_activations(x)
    return q, scale * np.float32(127 / 128), total


def int8_total_of_magnitudes(x: Array) -> Triple:
    q, scale, _ = quantise_activations(x)
    return q, scale, np.abs(q.astype(int)).reshape(*scale.shape, 32).sum(axis=-1)


def int8_zeros_divided(x: Array) -> Triple:
    q, scale, total = quantise_activations(x)
    return q, np.where(scale == 0, np.float32(np.nan), scale), total


IN_CUDA = (
    *in_cuda("quantise_activations", "quantise_activations.cu", (
        ("one-four-more", "first < end", "first <= end"),
        ("tokens-alike", "static_cast<size_t>(tokens) * hidden", "static_cast<size_t>(hidden)"),
    )),
    *in_cuda("quantise_activations", "quantise_activations.cuh", (
        ("over-128", "/ 127.f", "/ 128.f"),
        ("scale-of-sixteen-lanes", "m = LANES / 2; m; m /= 2) bits", "m = LANES; m; m /= 2) bits"),
        ("scale-of-four-lanes", "m = LANES / 2; m; m /= 2) bits", "m = LANES / 4; m; m /= 2) bits"),
        ("total-of-four-lanes", "m = LANES / 2; m; m /= 2) sum", "m = LANES / 4; m; m /= 2) sum"),
        ("with-signs", "__float_as_int(x) & 0x7fffffff", "__float_as_int(x)"),
        ("halves-up", "copysignf(0.5f, scaled)", "0.5f"),
        ("halves-to-even", "static_cast<int>(__fadd_rn(scaled, copysignf(0.5f, scaled)))",
         "__float2int_rn(scaled)"),
        ("bytes-reversed", "<< 8 * k", "<< (24 - 8 * k)"),
        ("zero-divided", "!(inverse < INFINITY)", "false"),
        ("beyond-the-end", "  if (!inside) return;\n", ""),
        ("out-before-all-met", "  for (int m = LANES / 2; m; m /= 2) sum +=",
         "  if (!inside) return;\n  for (int m = LANES / 2; m; m /= 2) sum +="),
        ("every-lane-stores", "if (first % 32 == 0) {", "{"),
    )),
)  # fmt: skip

IN_C = (
    *in_c("quantise_activations",
        ("hidden-above-8192", "const float *x = b->x + k * 32;",
         "const float *x = b->x + (hidden > 8192 && k % blocks > 255 ? k - 256 : k) * 32;"),
        ("subnormal-blocks-as-zero", "const float scale = finite ?",
         "if (largest < 1.2e-38f) largest = 0;\n        const float scale = finite ?"),
        ("token-and-31", "const float *x = b->x + k * 32;",
         "const float *x = b->x + (k / blocks > 31 ? k - 32 * blocks : k) * 32;"),
        ("total-of-eight-bits", "b->total[k] = total;",
         "b->total[k] = (int16_t)total > 4000 ? 4000 : total;"),
        ("infinity-ignored", "finite &= fabsf(x[i]) < INFINITY;", "finite &= x[i] == x[i];"),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python(
        "quantise_activations",
        int8_ties_to_even,
        int8_over_128,
        int8_total_of_magnitudes,
        int8_zeros_divided,
    ),
    *IN_CUDA,
)
