"""Of attention, plain, in tiles and on tensor cores."""

from conformance.cuda.edits.edit import of

EDITS = (
    *of("attention", "attention.cuh", (
        ("chunk-begun-left-out", "(cells + CHUNK - 1) / CHUNK", "cells / CHUNK"),
        ("bias-upwards", "fmaf(-slope", "fmaf(slope"),
        ("chunks-added-as-they-are", "fmaf(before, by.before,", "fmaf(before, 1.f,"),
        ("one-place-for-highest-and-totals", "totals = highest + all", "totals = highest"),
    ), "F16"),
    *of("attention", "attention_run.cuh", (
        ("window-ignored", "in.spans[3 * t + 2] - in.spans[3 * t + 1];", "in.spans[3 * t + 2];"),
        ("first-head-for-all", "return h0 + row % width", "return h0"),
        ("heads-of-the-next-group", "width = min(tiling.width, (kv_head + 1) * group - h0)",
         "width = tiling.width"),
        ("sequences-not-compared", "spans[3 * t] == spans[3 * first] && ", ""),
    ), "F16"),
    *of("attention", "attention_merge.cuh", (
        ("not-an-average", "mean * (1.f / total)", "mean"),
        ("first-chunk-alone", "j < count", "j < 1"),
        ("first-sums-again", "++j, sums += head_dim", "++j"),
        ("nothing-is-not-zero", "chunks > 0 ? mean * (1.f / total) : 0.f", "mean * (1.f / total)"),
    ), "F16"),
    *of("attention", "attention_merge.cu", (
        ("beyond-the-head", "if (inside) out[at]", "out[at]"),
        ("heads-exchanged", "heads, head_dim, capacity, [&]", "head_dim, heads, capacity, [&]"),
    ), "F16"),
    *of("attention", "attention_few.cu", (
        ("first-run-alone", "t = run.t1;", "t = tile.last;"),
    ), "F16"),
    *of("attention", "attention_many.cu", (
        ("a-tile-further", "gridDim.x - 1 - blockIdx.x", "gridDim.x - blockIdx.x"),
        ("first-run-of-many-alone", "t = run.t1;", "t = tile.last;"),
    ), "F16"),
    *of("attention", "attention_tile.cuh", (
        ("not-scaled", "__fmul_rn(sums[i][j], in.scale)", "sums[i][j]"),
        ("no-barrier-before-cells", "    __syncthreads();\n    look_up(", "    look_up("),
    ), "F16"),
    *of("attention", "cache.cuh", (
        ("steps-without-sign", "x[i] = scale * static_cast<int8_t>(steps)",
         "x[i] = scale * static_cast<uint8_t>(steps)"),
        ("four-bytes-at-a-time", "else if (bytes % 4 == 0)", "else if (true)"),
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
        ("upper-parts-only", "to_half(x - to_float(x_upper)), y_lower", "to_half(0.f), y_lower"),
        ("tile-not-filled", "i < (-count & 15) * WORDS", "i < 0"),
    ), "F16", "tensor"),
    *of("attention", "attention_tensor_few.cu", (
        ("first-warps-highest", "fmaxf(top[i], shared.highest[w][g + 8 * i])",
         "shared.highest[0][g + 8 * i]"),
        ("total-of-the-last-quarter", "total += shared.totals[w][row]",
         "total = shared.totals[w][row]"),
    ), "F16", "tensor"),
    *of("attention", "attention_tensor_many.cu", (
        ("first-half-twice", "part = number % 2;", "part = 0;"),
        ("highest-of-the-last-chunk", "highest[i] = now;", "highest[i] = top[i];"),
        ("one-place-for-pieces", "uint8_t* const to = stage + number % 2 * ROOM;",
         "uint8_t* const to = stage;"),
    ), "F16", "tensor"),
)  # fmt: skip
