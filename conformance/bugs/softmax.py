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
        ("max-over-the-first-2048", "for (int64_t i = 0; i < width; i++) most =",
         "for (int64_t i = 0; i < (width < 2048 ? width : 2048); i++) most ="),
        ("width-above-4096", "(exp((double)x[i] - most) / sum)",
         "(exp((double)x[i] - most) / sum + (width > 4096) * 1e-3)"),
        ("sum-in-float", "double sum = 0;", "float sum = 0;"),
        ("infinity-gives-zero", "float most = -INFINITY;",
         "float most = -INFINITY;\n        if (x[0] == INFINITY) { memset(out, 0, 4 * width); "
         "continue; }"),
        ("masked-token-divided", "double sum = 0;", "double sum = most == -INFINITY;"),
        ("static-powers", "double sum = 0;",
         "double sum = 0;\n        static double powers[4096];\n        powers[t & 4095] = "
         "exp((double)x[0] - most);", "construction"),
        ("nan-skipped", "x[i] > most || x[i] != x[i] ? x[i]", "x[i] > most ? x[i]"),
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
