"""Planted bugs of kv_write."""

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_numba, in_python
from reference.kv_write import kv_write
from reference.op import Array


def into_the_next_cell(x: Array, cells: Array, before: Array, format: str) -> Array:
    return kv_write(x, (cells + 1) % max(1, len(before)), before, format)


def into_cells_in_order(x: Array, cells: Array, before: Array, format: str) -> Array:
    return kv_write(x, np.arange(len(cells)), before, format)


def rounded_toward_zero(x: Array, cells: Array, before: Array, format: str) -> Array:
    half = x.astype(np.float16)
    beyond = np.abs(half.astype(np.float32)) > np.abs(x)
    out = before.copy()
    out[cells] = np.where(beyond, np.nextafter(half, np.float16(0)), half).view(np.uint8)
    return out


def steps_rounded_down(x: Array, cells: Array, before: Array, format: str) -> Array:
    """Q8_0 whose steps are floor(x / d): the scale is right, half of the values are one off."""
    out = kv_write(x, cells, before, format)
    blocks = out[cells].reshape(-1, 34)
    largest = np.abs(x.reshape(-1, 32)).max(axis=1, keepdims=True, initial=0)
    steps = np.floor(x.reshape(-1, 32) * (127 / np.maximum(largest, 1e-30)))
    blocks[:, 2:] = steps.astype(np.int8).view(np.uint8)
    out[cells] = blocks.reshape(len(cells), -1)
    return out


def last_token_lost(x: Array, cells: Array, before: Array, format: str) -> Array:
    return kv_write(x[:-1], cells[:-1], before, format)


IN_CUDA = (
    *in_cuda("kv_write", "kv_write.cu", (
        ("cell-of-the-token", "cells[blockIdx.x]", "blockIdx.x"),
        ("one-too-many", "i >= width", "i > width"),
    ), "F16"),
    *in_cuda("kv_write", "kv_write.cuh", (
        ("half-a-row", "(width / FORMAT::BLOCK)", "(width / 2 / FORMAT::BLOCK)"),
        ("truncated", "to_half(x)", "to_half(__uint_as_float(__float_as_uint(x) & 0xffffe000u))"),
        ("as-bfloat", "to_half(x)", "half_t{to_bfloat(x).bits}"),
    ), "F16"),
    *in_cuda("kv_write", "kv_write.cuh", (
        ("over-128", "/ 127.f", "/ 128.f"),
        ("halves-up", "copysignf(0.5f, scaled)", "0.5f"),
        ("halves-to-even", "static_cast<int>(__fadd_rn(scaled, copysignf(0.5f, scaled)))",
         "__float2int_rn(scaled)"),
        ("by-the-scale-as-stored", "__fmul_rn(x, inverse(d));\n    const",
         "__fmul_rn(x, inverse(to_float(to_half(d))));\n    const"),
        ("every-lane-stores-the-scale",
         "if (i % WARP == 0) put_half(block, to_half(d));\n    const float scaled",
         "put_half(block, to_half(d));\n    const float scaled"),
    ), "Q8_0"),
    *in_cuda("kv_write", "kv_write.cuh", (
        ("last-of-the-largest", "__ffs(__ballot_sync(ALL, fabsf(x) == largest)) - 1",
         "31 - __clz(__ballot_sync(ALL, fabsf(x) == largest))"),
        ("largest-without-sign", "__shfl_sync(ALL, x, first)", "largest"),
        ("no-top", "min(15, static_cast<int>(__fadd_rn(__fmul_rn(x, inverse(d)), 8.5f)))",
         "static_cast<int>(__fadd_rn(__fmul_rn(x, inverse(d)), 8.5f)) & 15"),
        ("truncated", "8.5f", "8.f"),
        ("nibbles-exchanged", "q | other << 4", "other | q << 4"),
        ("neighbours", "__shfl_down_sync(ALL, q, WARP / 2)", "__shfl_down_sync(ALL, q, 1)"),
        ("vote-of-half-a-warp", "__ballot_sync(ALL", "__ballot_sync(0xffffu"),
    ), "Q4_0"),
)  # fmt: skip

IN_C = (
    *in_c("kv_write",
        ("overflow-saturates", "put(row, i, x[i])",
         "put(row, i, x[i] > 65504 ? 65504 : x[i] < -65504 ? -65504 : x[i])"),
        ("nan-becomes-infinity", "put(row, i, x[i])",
         "put(row, i, x[i] != x[i] ? INFINITY : x[i])"),
        ("subnormal-halves-flushed", "put(row, i, x[i])",
         "put(row, i, fabsf(x[i]) < 6.1e-5f ? 0 : x[i])"),
        ("ties-up", "put(row, i, x[i])", "put(row, i, x[i] * (1 + 1e-7f))"),
        ("width-above-256", "put(row, i, x[i])", "put(row, i, x[i > 255 ? i & 255 : i])"),
        ("width-of-1024", "put(row, i, x[i])", "put(row, i, width == 1024 && i == 1023 ? 0 : x[i])",
         "shape", ({"tokens": 1, "capacity": 40, "width": 1024},)),
        ("cell-above-255", "const int64_t cell = b->cells[t];",
         "const int64_t cell = (uint8_t)b->cells[t];"),
        ("cell-of-sixteen-bits", "const int64_t cell = b->cells[t];",
         "const int64_t cell = (uint16_t)b->cells[t];"),
        ("token-63", "const float *x = b->x + t * width;",
         "const float *x = b->x + (t & 63) * width;"),
        ("negative-zero-loses-its-sign", "put(row, i, x[i])", "put(row, i, x[i] == 0 ? 0 : x[i])"),
        formats=("F16",),
    ),
    *in_c("kv_write",
        ("subnormals-flushed", "put(row, i, x[i])",
         "put(row, i, fabsf(x[i]) < 1.2e-38f ? 0 : x[i])"),
        ("width-above-1024", "put(row, i, x[i])", "put(row, i, i > 1023 ? 0 : x[i])"),
        ("cell-of-12-bits", "const int64_t cell = b->cells[t];",
         "const int64_t cell = b->cells[t] & 4095;"),
        formats=("F32",),
    ),
)  # fmt: skip


BUGS = (
    *in_numba(
        "kv_write",
        "kv_write.py",
        ("cell-above-255", "out[cells[t]]", "out[cells[t] & 255]"),
        format="F16",
    ),
    *IN_C,
    *in_python("kv_write", into_the_next_cell, formats=("F16", "Q4_0")),
    *in_python("kv_write", into_cells_in_order, last_token_lost, formats=("F32",)),
    *in_python("kv_write", rounded_toward_zero, formats=("F16",)),
    *in_python("kv_write", steps_rounded_down, formats=("Q8_0",)),
    *IN_CUDA,
)
