"""Planted bugs of arithmetic."""

from typing import Any

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_numba, in_python
from reference import arithmetic
from reference.op import Array


def add_in_float16(x: Array, y: Array) -> Array:
    return x.astype(np.float16) + y.astype(np.float16)


def bias_of_the_next(x: Array, bias: Array) -> Array:
    return arithmetic.add_bias(x, np.roll(bias, 1))


def scale_in_float16(x: Array, factor: float) -> Any:
    return x * np.float16(factor)


IN_CUDA = (
    *in_cuda("add", "elementwise.cuh", (
        ("four-where-three-are", "  if (first + 4 <= end) {\n    const",
         "  if (first + 3 <= end) {\n    const"),
        ("stores-one-more", "if (first + k < end) out", "if (first + k <= end) out"),
        ("stores-one-less", "if (first + k < end) out", "if (first + k + 1 < end) out"),
        ("stores-four-always", "  if (first + 4 <= end) {\n    *", "  {\n    *"),
        ("reads-one-less", "first + k < end ? x", "first + k + 1 < end ? x"),
        ("threes", "return 4 * (", "return 3 * ("),
        ("every-block-the-first", "static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x);",
         "threadIdx.x);"),
        ("exchanged", "{four.at[0], four.at[1], ", "{four.at[1], four.at[0], "),
        ("x-with-itself", "other = load_four(y,", "other = load_four(x,"),
    )),
    *in_cuda("add_bias", "arithmetic.cu", (
        ("one-too-many", "i >= width", "i > width"),
        ("bias-of-the-token", "bias[i]", "bias[blockIdx.x]"),
        ("row-of-tokens", "blockIdx.x) * width + i", "blockIdx.x) * tokens + i"),
        ("first-block-of-a-row", "blockIdx.y * blockDim.x + threadIdx.x", "threadIdx.x"),
    )),
    *in_cuda("scale", "arithmetic.cu", (("twice", "x * factor", "x * factor * factor"),)),
)  # fmt: skip

IN_C = (
    *in_c("add",
        ("element-beyond-65535", "b->x[i] + b->y[i]", "b->x[i] + b->y[i & 65535]"),
        ("infinity-becomes-nan", "b->x[i] + b->y[i]", "isinf(b->x[i]) ? NAN : b->x[i] + b->y[i]"),
        ("saturates", "b->x[i] + b->y[i]", "fminf(b->x[i] + b->y[i], 3.4e38f)"),
        ("subnormals-flushed", "b->x[i] + b->y[i];",
         "b->x[i] + b->y[i];\n        if (fabsf(b->out[i]) < 1.2e-38f) b->out[i] = 0;"),
        ("width-of-5120", "b->x[i] + b->y[i]", "b->x[i] + b->y[i] + (width == 5120)",
         "shape", ({"tokens": 1, "width": 5120},)),
        ("vector-beyond-the-end", "EACH(i, elements) {",
         "if (thread == n_threads - 1) b->out[elements] = 0;\n    EACH(i, elements) {"),
        ("last-left-of-odd", "EACH(i, elements) {",
         "EACH(i, elements - (elements > 4096 && elements & 1)) {"),
        ("y-in-bfloat", "+ b->y[i];",
         "+ ({ uint32_t bits; memcpy(&bits, b->y + i, 4); bits &= 0xffff0000; float y; "
         "memcpy(&y, &bits, 4); y; });"),
        ("exchanged-at-an-odd-four", "b->x[i] + b->y[i]",
         "((uintptr_t)(b->y + i) & 63) == 4 ? b->x[i] : b->x[i] + b->y[i]"),
    ),
    *in_c("add_bias",
        ("bias-and-4095", "b->bias[i]", "b->bias[i & 4095]"),
        ("token-511", "EACH(t, b->x_dims[0]) {", "EACH(t, b->x_dims[0] - (b->x_dims[0] > 512)) {"),
    ),
)  # fmt: skip


BUGS = (
    *in_numba(
        "add",
        "arithmetic.py",
        ("element-beyond-65535", "load_some(y, i, last)))", "load_some(y, i & 65535, last)))"),
    ),
    *IN_C,
    *in_python("add", add_in_float16),
    *in_python("add_bias", bias_of_the_next),
    *in_python("scale", scale_in_float16),
    *IN_CUDA,
)
