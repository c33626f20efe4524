"""Planted bugs of softmax."""

import math

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_numba, in_python
from reference import softmax
from reference.op import Array


def softmax_without_max(x: Array) -> Array:
    powers = np.exp(x)
    return powers / powers.sum(axis=1, keepdims=True)


def softmax_missing_the_last(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=1, keepdims=True, initial=-np.inf).astype(np.float64))
    return powers / powers[:, :-1].sum(axis=1, keepdims=True)


def softmax_of_powers_of_two(x: Array) -> Array:
    return softmax.softmax(x * math.log(2))


def softmax_over_tokens(x: Array) -> Array:
    return softmax.softmax(x.T).T


def softmax_unmasked(x: Array) -> Array:
    return softmax.softmax(np.where(np.isinf(x), 0, x))


IN_CUDA = (
    *in_cuda("softmax", "softmax.cu", (
        ("largest-of-the-thread", "  top = block_reduce(top, partial, Max());\n", ""),
        ("sum-of-the-thread", "  sum = block_reduce(sum, partial, Sum());\n", ""),
        ("largest-without-the-last", "i < width; i += blockDim.x) top",
         "i < width - 1; i += blockDim.x) top"),
        ("no-largest", "expf(x[row + i] - top)", "expf(x[row + i])"),
        ("base-two", "expf(", "exp2f("),
        ("not-normed", "out[row + i] /= sum", "out[row + i] /= 1.f"),
        ("sum-of-the-largest", "partial, Sum()", "partial, Max()"),
        ("largest-of-the-sum", "partial, Max()", "partial, Sum()"),
        ("row-of-tokens", "blockIdx.x) * width", "blockIdx.x) * tokens"),
    )),
)  # fmt: skip

IN_C = (
    *in_c("softmax",
        ("width-above-4096", "(exp((double)x[i] - most) / sum)",
         "(exp((double)x[i] - most) / sum + (width > 4096) * 1e-3)"),
        ("infinity-gives-zero", "double sum = 0;",
         "if (most == INFINITY) { memset(out, 0, 4 * width); continue; }\n        double sum = 0;"),
        ("static-powers", "double sum = 0;",
         "static volatile double sums[64];\n        double sum = sums[t & 63] = 0;",
         "construction"),
        ("far-below-is-zero", "(exp((double)x[i] - most) / sum)",
         "(x[i] - most < -80 ? 0 : exp((double)x[i] - most) / sum)"),
    ),
)  # fmt: skip


BUGS = (
    *in_numba(
        "softmax",
        "softmax.py",
        (
            "max-over-the-first-2048",
            "for i in range(width):\n            highest",
            "for i in range(min(width, 2048)):\n            highest",
        ),
    ),
    *IN_C,
    *in_python(
        "softmax",
        softmax_without_max,
        softmax_missing_the_last,
        softmax_of_powers_of_two,
        softmax_over_tokens,
        softmax_unmasked,
    ),
    *IN_CUDA,
)
