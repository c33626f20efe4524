"""Of attention, plain, in tiles and on tensor cores."""

from conformance.cuda.edits.edit import of

EDITS = (
    *of("attention", "attention.cuh", (
        ("chunk-begun-left-out", "(cells + CHUNK - 1) / CHUNK", "cells / CHUNK"),
        ("bias-upwards", "fmaf(-slope", "fmaf(slope"),
    ), "F16"),
    *of("attention", "attention_run.cuh", (
        ("window-ignored", "in.spans[3 * t + 2] - in.spans[3 * t + 1];", "in.spans[3 * t + 2];"),
        ("first-head-for-all", "return h0 + row % width", "return h0"),
    ), "F16"),
    *of("attention", "attention_merge.cu", (
        ("not-an-average", "mean * (1.f / total)", "mean"),
        ("first-chunk-alone", "j < count", "j < 1"),
    ), "F16"),
    *of("attention", "attention_few.cu", (
        ("first-run-alone", "t = run.t1;", "t = tile.last;"),
    ), "F16"),
    *of("attention", "attention_many.cu", (
        ("a-tile-further", "gridDim.x - 1 - blockIdx.x", "gridDim.x - blockIdx.x"),
    ), "F16"),
    *of("attention", "attention_tile.cuh", (
        ("not-scaled", "__fmul_rn(sums[i][j], in.scale)", "sums[i][j]"),
    ), "F16"),
    *of("attention", "cache.cuh", (
        ("steps-without-sign", "x[i] = scale * static_cast<int8_t>(steps)",
         "x[i] = scale * static_cast<uint8_t>(steps)"),
    ), "Q8_0"),
    *of("attention", "cache.cuh", (
        ("around-seven", "x[i] = scale * ((steps & 15) - 8)",
         "x[i] = scale * ((steps & 15) - 7)"),
    ), "Q4_0"),
    *of("attention", "attention_scalar.cu", (
        ("not-scaled", "__fmul_rn(dot, static_cast<float>(scale))", "dot"),
        ("no-barrier-between-chunks", "    __syncthreads();\n  }\n  for", "  }\n  for"),
    ), "F16", "scalar"),
    *of("attention", "attention_tensor.cuh", (
        ("not-scaled", "__fmul_rn(to[j][e], rows[e / 2].scale)", "to[j][e]"),
        ("half-of-four-lanes", "  x += __shfl_xor_sync(ALL, x, 1);\n", ""),
    ), "F16", "tensor"),
    *of("attention", "attention_tensor_few.cu", (
        ("first-warps-highest", "fmaxf(top[i], shared.highest[w][g + 8 * i])",
         "shared.highest[0][g + 8 * i]"),
    ), "F16", "tensor"),
    *of("attention", "attention_tensor_many.cu", (
        ("first-half-twice", "part = number % 2;", "part = 0;"),
    ), "F16", "tensor"),
)  # fmt: skip
