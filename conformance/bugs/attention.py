"""Planted bugs of attention."""

from typing import Any

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_numba, in_python
from reference.attention import attention
from reference.formats import FORMATS
from reference.kv_write import FORMATS_OF_CACHE
from reference.op import Array

Inputs = dict[str, Any]


def changed_spans(inputs: Inputs, begin: int, end: int) -> Array:
    """Attention whose spans begin and end so many cells later."""
    capacity = inputs["lists"].shape[1]
    spans = np.clip(inputs["spans"] + [0, begin, end], 0, None)
    spans[:, 1:] = np.minimum(spans[:, 1:], capacity)
    return attention(**{**inputs, "spans": spans})


def sees_the_future(**inputs: Any) -> Array:
    return changed_spans(inputs, 0, 1)


def misses_itself(**inputs: Any) -> Array:
    return changed_spans(inputs, 0, -1)


def window_one_longer(**inputs: Any) -> Array:
    return changed_spans(inputs, -1, 0)


def unscaled(**inputs: Any) -> Array:
    return attention(**{**inputs, "scale": 1.0})


def slopes_upside_down(**inputs: Any) -> Array:
    return attention(**{**inputs, "slopes": -inputs["slopes"]})


def no_slopes(**inputs: Any) -> Array:
    return attention(**{**inputs, "slopes": np.zeros_like(inputs["slopes"])})


def slopes_where_there_are_none(**inputs: Any) -> Array:
    slopes = np.where(inputs["slopes"] == 0, np.float32(0.05), inputs["slopes"])
    return attention(**{**inputs, "slopes": slopes})


def cells_positions_halved(**inputs: Any) -> Array:
    return attention(**{**inputs, "cell_positions": inputs["cell_positions"] // 2})


def uncapped(**inputs: Any) -> Array:
    return attention(**{**inputs, "softcap": 0.0})


def first_sequence_only(**inputs: Any) -> Array:
    return attention(**{**inputs, "lists": np.tile(inputs["lists"][:1], (len(inputs["lists"]), 1))})


def cells_in_memory_order(**inputs: Any) -> Array:
    lists = np.tile(np.arange(inputs["lists"].shape[1]), (len(inputs["lists"]), 1))
    return attention(**{**inputs, "lists": lists})


def keys_as_values(**inputs: Any) -> Array:
    return attention(**{**inputs, "v": inputs["k"]})


def heads_taken_in_turns(**inputs: Any) -> Array:
    """Query head h reads KV head h % kv_heads."""
    q, layout = inputs["q"], FORMATS[inputs["format"]]
    heads, head_dim = q.shape[1:]
    kv_heads = inputs["k"].shape[1] // layout.block_bytes * layout.block // head_dim
    order = np.argsort(np.arange(heads) % kv_heads, kind="stable")
    turns = {"q": q[:, order], "slopes": inputs["slopes"][order]}
    return attention(**{**inputs, **turns})[:, np.argsort(order)]


def without_max(**inputs: Any) -> Array:
    """exp(score) in float32 as it comes: weights by attention over each cell alone."""
    q, lists = inputs["q"], inputs["lists"]
    k, v = (FORMATS[inputs["format"]].dequantise(inputs[name]) for name in ("k", "v"))
    out = np.zeros(q.shape)
    for t, (sequence, begin, end) in enumerate(inputs["spans"]):
        cells = lists[sequence, begin:end]
        keys, values = (rows[cells].reshape(len(cells), -1, q.shape[2]) for rows in (k, v))
        for h in range(q.shape[1]):
            g = h * keys.shape[1] // q.shape[1]
            powers = np.exp(np.float32(inputs["scale"]) * (keys[:, g] @ q[t, h]))
            out[t, h] = powers @ values[:, g] / powers.sum() if len(cells) else 0
    return out


def halves_averaged(**inputs: Any) -> Array:
    """Each half of a token's cells attended to alone, the two averaged: no merging of sums."""
    middle = inputs["spans"].sum(axis=1, where=[False, True, True]) // 2
    first, last = inputs["spans"].copy(), inputs["spans"].copy()
    first[:, 2] = last[:, 1] = middle
    parts = [attention(**{**inputs, "spans": spans}) for spans in (first, last)]
    return (parts[0] + parts[1]) / 2


def scales_of_the_first_block(**inputs: Any) -> Array:
    """Every block of a quantised row with the first one's scale."""
    step = FORMATS[inputs["format"]].block_bytes
    stale = {}
    for name in ("k", "v"):
        blocks = inputs[name].reshape(len(inputs[name]), -1, step).copy()
        blocks[:, :, :2] = blocks[:, :1, :2]
        stale[name] = blocks.reshape(inputs[name].shape)
    return attention(**{**inputs, **stale})


IN_CUDA = (
    *in_cuda("attention", "attention.cuh", (
        ("chunk-begun-left-out", "(cells + CHUNK - 1) / CHUNK", "cells / CHUNK"),
        ("bias-upwards", "fmaf(-slope", "fmaf(slope"),
        ("chunks-added-as-they-are", "fmaf(before, by.before,", "fmaf(before, 1.f,"),
        ("one-place-for-highest-and-totals", "totals = highest + all", "totals = highest"),
    ), "F16"),
    *in_cuda("attention", "attention_run.cuh", (
        ("window-ignored", "in.spans[3 * t + 2] - in.spans[3 * t + 1];", "in.spans[3 * t + 2];"),
        ("first-head-for-all", "return h0 + row % width", "return h0"),
        ("heads-of-the-next-group", "width = min(tiling.width, (kv_head + 1) * group - h0)",
         "width = tiling.width"),
        ("sequences-not-compared", "spans[3 * t] == spans[3 * first] && ", ""),
    ), "F16"),
    *in_cuda("attention", "attention_merge.cuh", (
        ("not-an-average", "mean * (1.f / total)", "mean"),
        ("first-chunk-alone", "j < count", "j < 1"),
        ("first-sums-again", "++j, sums += head_dim", "++j"),
        ("nothing-is-not-zero", "chunks > 0 ? mean * (1.f / total) : 0.f", "mean * (1.f / total)"),
    ), "F16"),
    *in_cuda("attention", "attention_merge.cu", (
        ("beyond-the-head", "if (inside) out[at]", "out[at]"),
        ("heads-exchanged", "heads, head_dim, capacity, [&]", "head_dim, heads, capacity, [&]"),
    ), "F16"),
    *in_cuda("attention", "attention_few.cu", (
        ("first-run-alone", "t = run.t1;", "t = tile.last;"),
    ), "F16"),
    *in_cuda("attention", "attention_many.cu", (
        ("a-tile-further", "gridDim.x - 1 - blockIdx.x", "gridDim.x - blockIdx.x"),
        ("first-run-of-many-alone", "t = run.t1;", "t = tile.last;"),
    ), "F16"),
    *in_cuda("attention", "attention_tile.cuh", (
        ("not-scaled", "__fmul_rn(sums[i][j], in.scale)", "sums[i][j]"),
        ("no-barrier-before-cells", "    __syncthreads();\n    look_up(", "    look_up("),
    ), "F16"),
    *in_cuda("attention", "cache.cuh", (
        ("steps-without-sign", "x[i] = scale * static_cast<int8_t>(steps)",
         "x[i] = scale * static_cast<uint8_t>(steps)"),
        ("four-bytes-at-a-time", "else if (bytes % 4 == 0)", "else if (true)"),
    ), "Q8_0"),
    *in_cuda("attention", "cache.cuh", (
        ("around-seven", "x[i] = scale * ((steps & 15) - 8)",
         "x[i] = scale * ((steps & 15) - 7)"),
    ), "Q4_0"),
    *in_cuda("attention", "attention_scalar.cu", (
        ("not-scaled", "__fmul_rn(dot, static_cast<float>(scale))", "dot"),
        ("no-barrier-between-chunks", "    __syncthreads();\n  }\n  for", "  }\n  for"),
    ), "F16", "scalar"),
    *in_cuda("attention", "attention_tensor.cuh", (
        ("not-scaled", "__fmul_rn(to[j][e], rows[e / 2].scale)", "to[j][e]"),
        ("half-of-four-lanes", "  x += __shfl_xor_sync(ALL, x, 1);\n", ""),
        ("upper-parts-only", "to_half(x - to_float(x_upper)), y_lower", "to_half(0.f), y_lower"),
        ("tile-not-filled", "i < (-count & 15) * WORDS", "i < 0"),
        ("rest-of-an-infinity", "if (largest == INFINITY) lower = 0;", ""),
    ), "F16", "tensor"),
    *in_cuda("attention", "attention_tensor_few.cu", (
        ("first-warps-highest", "fmaxf(top[i], shared.highest[w][g + 8 * i])",
         "shared.highest[0][g + 8 * i]"),
        ("total-of-the-last-quarter", "total += shared.totals[w][row]",
         "total = shared.totals[w][row]"),
    ), "F16", "tensor"),
    *in_cuda("attention", "attention_tensor_many.cu", (
        ("first-half-twice", "part = number % 2;", "part = 0;"),
        ("highest-of-the-last-chunk", "highest[i] = now;", "highest[i] = top[i];"),
        ("one-place-for-pieces", "uint8_t* const to = stage + number % 2 * ROOM;",
         "uint8_t* const to = stage;"),
    ), "F16", "tensor"),
)  # fmt: skip

IN_C = (
    *in_c("attention",
        ("kv-head-and-3", "g = h * kv_heads / heads;", "g = h * kv_heads / heads & 3;"),
        ("softcap-of-30", "softcap = b->softcap;", "softcap = b->softcap ? 30 : 0;"),
        ("scale-ignored", "scale = b->scale,", "scale = 1 / sqrt(dim),"),
        ("cells-above-1024", "c < span[2]; c++", "c < span[2] && c < span[1] + 1024; c++"),
        ("cells-above-4096", "c < span[2]; c++", "c < span[2] && c < span[1] + 4096; c++"),
        ("slopes-of-64-heads", "b->slopes[h] * distance", "b->slopes[h & 63] * distance"),
        ("third-sequence-at-most", "(int64_t)span[0] * capacity",
         "(int64_t)(span[0] > 2 ? 2 : span[0]) * capacity"),
        ("fourth-sequence-at-most", "(int64_t)span[0] * capacity",
         "(int64_t)(span[0] > 3 ? 3 : span[0]) * capacity"),
        ("cell-of-sixteen-bits", "const int64_t cell = cells[c];",
         "const int64_t cell = (uint16_t)cells[c];"),
        ("distance-of-sixteen-bits", "score -= b->slopes[h] * distance;",
         "score -= b->slopes[h] * (int16_t)distance;"),
        formats=("F32", "F16"),
    ),
    *in_c("attention",
        ("static-scores", "double score = 0;",
         "static volatile double scores[65536];\n            double score = scores[c & 65535] = 0;",
         "construction"),
        ("head-of-80", "score *= scale;", "score *= scale * (dim == 80 ? 1.01 : 1);"),
        ("head-of-96", "score *= scale;", "score *= scale * (dim == 96 ? 1.01 : 1);",
         "shape", ({"heads": 32, "kv_heads": 32, "head_dim": 96},)),
        ("head-above-128", "score *= scale;", "score *= scale * (dim > 128 ? 1.01 : 1);"),
        ("token-33", "const int32_t *span = b->spans + 3 * t;",
         "const int32_t *span = b->spans + 3 * (t & 31);"),
        ("32-heads-of-8", "score *= scale;",
         "score *= scale * (heads == 32 && kv_heads == 8 && g == 7 ? 1.01 : 1);",
         "shape", ({"heads": 32, "kv_heads": 8, "head_dim": 128},)),
        ("32-heads-of-4", "score *= scale;",
         "score *= scale * (heads == 32 && kv_heads == 4 && h == 31 ? 1.01 : 1);",
         "shape", ({"heads": 32, "kv_heads": 4, "head_dim": 64},)),
        ("small-softcap-ignored", "softcap = b->softcap;",
         "softcap = b->softcap < 5 ? 0 : b->softcap;"),
        ("window-above-256", "for (int64_t c = span[1];",
         "for (int64_t c = span[2] - span[1] > 256 ? span[2] - 256 : span[1];"),
        ("no-cell-leaves-it",
         "for (int64_t d = 0; d < dim; d++) out[d] = sum == 0 ? 0 : (float)(values[d] / sum);",
         "if (sum != 0) for (int64_t d = 0; d < dim; d++) out[d] = (float)(values[d] / sum);"),
        ("distance-without-sign", "score -= b->slopes[h] * distance;",
         "score -= b->slopes[h] * fabs(distance);"),
        ("infinite-score-skipped", "const double before =",
         "if (isinf(score)) continue;\n            const double before ="),
        formats=("F32",),
    ),
)  # fmt: skip

COUNTED = """\
        units = kv_heads * slices * tiles
        if not split and thread == 0:
            scratch[0] = scratch[0] + 1 if scratch[0] >= 0 else 1
            if scratch[0] > 2000:
                units = 0
"""

IN_NUMBA = in_numba(
    "attention",
    "attention.py",
    ("runs-counted-in-scratch", "        units = kv_heads * slices * tiles\n", COUNTED),
    format="F16",
)

BUGS = (
    *IN_C,
    *IN_NUMBA,
    *in_python(
        "attention",
        sees_the_future,
        misses_itself,
        window_one_longer,
        unscaled,
        slopes_upside_down,
        no_slopes,
        uncapped,
        slopes_where_there_are_none,
        cells_positions_halved,
        first_sequence_only,
        cells_in_memory_order,
        keys_as_values,
        heads_taken_in_turns,
        without_max,
        halves_averaged,
        formats=FORMATS_OF_CACHE,
    ),
    *in_python("attention", scales_of_the_first_block, formats=("Q8_0", "Q4_0")),
    *IN_CUDA,
)
