"""Planted bugs of linear."""

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_numba, in_python
from reference.formats import FORMATS
from reference.linear import linear
from reference.op import Array
from reference.quantise_activations import dequantise_activations, quantise_activations


def weights(weight: Array, format: str) -> Array:
    return FORMATS[format].dequantise(weight).astype(np.float64)


def nibbles_swapped(data: Array) -> Array:
    """Q4_0 rows with the halves of each byte exchanged."""
    blocks = data.reshape(*data.shape[:-1], -1, 18).copy()
    quants = blocks[..., 2:]
    blocks[..., 2:] = quants << 4 | quants >> 4
    return blocks.reshape(data.shape)


def tail_dropped(x: Array, weight: Array, format: str) -> Array:
    """Only whole vectors of 16 along hidden."""
    whole = x.shape[1] // 16 * 16
    return x[:, :whole].astype(np.float64) @ weights(weight, format)[:, :whole].T


def last_element_dropped(x: Array, weight: Array, format: str) -> Array:
    return x[:, :-1].astype(np.float64) @ weights(weight, format)[:, :-1].T


def swapped_nibbles(x: Array, weight: Array, format: str) -> Array:
    return linear(x, nibbles_swapped(weight), format)


def offset_of_seven(x: Array, weight: Array, format: str) -> Array:
    scale = weight.reshape(len(weight), -1, 18)[:, :, :2].copy().view(np.float16)
    raised = weights(weight, format) + np.repeat(scale[..., 0].astype(np.float64), 32, axis=1)
    return x.astype(np.float64) @ raised.T


def bytes_unsigned(x: Array, weight: Array, format: str) -> Array:
    blocks = weight.reshape(len(weight), -1, 34)
    scale = blocks[:, :, :2].copy().view(np.float16).astype(np.float64)
    return x.astype(np.float64) @ (scale * blocks[:, :, 2:]).reshape(len(weight), -1).T


def stale_weight_scale(x: Array, weight: Array, format: str) -> Array:
    """Every block with the scale of the block before."""
    size = FORMATS[format].block_bytes
    blocks = weight.reshape(len(weight), -1, size).copy()
    blocks[:, 1:, :2] = blocks[:, :-1, :2].copy()
    return linear(x, blocks.reshape(weight.shape), format)


def stale_activation_scale(x: Array, weight: Array, format: str) -> Array:
    q, scale, _ = quantise_activations(x)
    return linear(dequantise_activations(q, np.roll(scale, 1, axis=1)), weight, format)


def activations_of_seven_bits(x: Array, weight: Array, format: str) -> Array:
    q, scale, _ = quantise_activations(x)
    return linear(dequantise_activations(q // 2 * 2, scale), weight, format)


def float16_sum(x: Array, weight: Array, format: str) -> Array:
    products = x[:, None, :] * weights(weight, format)[None].astype(np.float32)
    return np.add.reduce(products.astype(np.float16), axis=-1, dtype=np.float16)


def last_row_missing(x: Array, weight: Array, format: str) -> Array:
    out = linear(x, weight, format)
    out[:, -1] = 0
    return out


def last_token_missing(x: Array, weight: Array, format: str) -> Array:
    out = linear(x, weight, format)
    out[-1:] = 0
    return out


def transposed(x: Array, weight: Array, format: str) -> Array:
    out = linear(x, weight, format)
    return out.T.reshape(out.shape)


def bfloat16_activations(x: Array, weight: Array, format: str) -> Array:
    short = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return linear(short, weight, format)


IN_CUDA = (
    *in_cuda("linear", "codes.cuh", (
        ("raised-by-seven", "int raised = 8;", "int raised = 7;"),
        ("borrows", "(codes[c] | 0x80808080u) - F::raised * 0x01010101u) ^ 0x80808080u",
         "codes[c] - F::raised * 0x01010101u)"),
        ("another-scale", "unit = block / F::blocks", "unit = block / F::blocks / 2"),
        ("lower-for-upper-nibbles", ">> F::low * (c / F::low)", ">> F::low"),
    ), "Q4_0"),
    *in_cuda("linear", "codes.cuh", (
        ("planes-where-they-end", "(bytes + 15) / 16 * 16", "bytes / 16 * 16"),
        ("fifth-bits-of-the-first-four", " >> F::high * (c / F::high)", ""),
        ("fifth-bits-lowest", "each) << F::low", "each)"),
        ("raised-by-fifteen", "high = 1, raised = 16", "high = 1, raised = 15"),
    ), "Q5_0"),
    *in_cuda("linear", "codes.cuh", (
        ("offset-for-scale", "half_t{static_cast<uint16_t>(block.d >> 16)}",
         "half_t{static_cast<uint16_t>(block.d)}"),
        ("no-offset", "struct q4_1 : Coding {\n  static constexpr bool m = true;",
         "struct q4_1 : Coding {\n  static constexpr bool m = false;"),
    ), "Q4_1"),
    *in_cuda("linear", "codes.cuh", (
        ("floors-added", "-m * floor", "m * floor"),
        ("floors-for-integers", "F::integers ? d * integer", "F::integers ? d * floor"),
        ("one-floor-for-all", "block.integers >> 8;", "1;"),
    ), "Q4_K"),
    *in_cuda("linear", "codes.cuh", (
        ("halves-exchanged", "F::halves ? byte & 15 :", "F::halves ? byte >> 4 :"),
        ("first-part-twice", "block.integers >> 8 * p & 255", "block.integers & 255"),
        ("no-halves", "true, halves = true;", "true, halves = false;"),
    ), "Q2_K"),
    *in_cuda("linear", "codes.cuh", (
        ("integers-without-sign", ": static_cast<int8_t>(byte)", ": byte"),
        ("sixth-bits-lost", "high = 2, raised = 32", "high = 1, raised = 32"),
    ), "Q6_K"),
    *in_cuda("linear", "codes.cuh", (
        ("a-value-off", "0xbfad9881", "0xbfad9882"),
        ("nibbles-exchanged", "found[1], 0x6420)", "found[1], 0x7531)"),
        ("half-a-table", "(word & 0x88888888u) >> 1", "0u"),
        ("three-bits-and-a-sign", "& 0x7777u", "& 0x3333u"),
    ), "IQ4_NL"),
    *in_cuda("linear", "codes.cuh", (
        ("twice", "(block.d - 1) << 23", "block.d << 23"),
        ("as-a-half", "bool table = true, power = true", "bool table = true, power = false"),
    ), "MXFP4"),
    *in_cuda("linear", "codes.cuh", (("quarters", "0.125f", "0.25f"),), "IQ2_XXS"),
    *in_cuda("linear", "chains.cuh", (
        ("no-barrier", "  __syncwarp();\n", ""),
        ("half-of-the-chains", "c < CHAINS; ++c", "c < CHAINS / 2; ++c"),
        ("lanes-of-other-sums", "partial[lane * (WARP + 1) + c]", "partial[lane * WARP + c]"),
    ), "Q4_0"),
    *in_cuda("linear", "linear.cuh", (
        ("the-first-chain-alone", "chain < CHAINS && item < items", "chain < 1 && item < items"),
        ("chains-again", "chain < CHAINS && item < items", "item < items"),
        ("chains-never-end", "item + CHAINS >= items", "false"),
        ("every-item-twice", "item += CHAINS;\n", "item += CHAINS / 2;\n"),
        ("items-too-early", "min(item + DEPTH * CHAINS", "min(item + CHAINS / 2"),
        ("items-of-another-lane", "first = lane; first < items", "first = 0; first < items"),
        ("every-second-step", "first += DEPTH * CHAINS", "first += DEPTH * CHAINS * 2"),
        ("reads-beyond-the-row", "next[d] = load(min(lane + d * CHAINS, items - 1))",
         "next[d] = load(lane + d * CHAINS)"),
        ("tokens-for-rows", "row += lane / TOKENS", "row += lane % ROWS"),
        ("rows-beyond-the-last", " && row < rows)\n", ")\n"),
        ("another-token", "static_cast<size_t>(token) * rows + row",
         "static_cast<size_t>(row) * tokens + token"),
    ), "Q4_0"),
    *in_cuda("linear", "linear_blocks.cuh", (
        ("half-a-dot", "c < p * WORDS + WORDS; ++c", "c < p * WORDS + WORDS / 2; ++c"),
        ("raised-added", "-F::raised * totals[p]", "F::raised * totals[p]"),
        ("one-scale", "factors.w[p] * x.scale", "factors.w[p]"),
        ("one-row", "min(row + r, rows - 1)) * blocks", "min(row, rows - 1)) * blocks"),
        ("reads-rows-beyond", "min(row + r, rows - 1)) * blocks", "row + r) * blocks"),
        ("first-token-for-all", "min(t, tokens - 1)", "0"),
        ("tokens-beyond-the-last", "min(t, tokens - 1)", "t"),
        ("sums-of-one-warp", "partial + warp * PARTIAL<ROWS, TOKENS>", "partial"),
    ), "Q4_0"),
    *in_cuda("linear", "linear_blocks.cu", (
        ("lines-overlap", "LINE = 8 * STEP + 4", "LINE = 8 * STEP - 4"),
        ("one-slot-of-activations", "tile.x + item * LINE + 8 * slot", "tile.x + item * LINE"),
        ("no-barrier-before", "put(load, tile, slot, item);\n    __syncthreads();",
         "put(load, tile, slot, item);"),
        ("no-barrier-after", "    __syncthreads();\n  }\n\n#pragma", "  }\n\n#pragma"),
        ("no-barrier-for-the-idle", "  fetch();\n  while",
         "  fetch();\n  if (!works) return;\n  while"),
        ("slots-alike", "if (s != slot || !bring", "if (s || !bring"),
        ("beyond-the-last-item", "if (s != slot || !bring.inside()) continue;",
         "if (s != slot) continue;"),
        ("last-chain-alone", "all[i][j][e] += sums", "all[i][j][e] = sums"),
        ("chains-run-on", "            sums[i][j][e] = 0.f;\n", ""),
        ("columns-exchanged", "x[e % 2], dots)", "x[e / 2], dots)"),
        ("lower-rows-scaled-as-upper", "factor[i][e / 2]", "factor[i][0]"),
        ("upper-rows-twice", "+ 16 * i + 8 * half + g", "+ 16 * i + g"),
        ("half-of-a-block", "8 * slot + t + 4];\n#pragma", "8 * slot + t];\n#pragma"),
        ("stored-by-neighbours", "lane % 4 * 2 + e % 2", "lane % 4 * 2 + e / 2"),
        ("stored-beyond", "if (row < rows && token < tokens)\n", "if (row < rows)\n"),
        ("idle-by-rows-alone", "first_row < rows && first_token < tokens", "first_token == 0"),
    ), "Q4_0"),
    *in_cuda("linear", "linear_blocks.cuh", (
        ("first-total-for-both", "totals[1] -= totals[0] = total_of(x)",
         "totals[0] = total_of(x)"),
        ("no-offset", "fmaf(factors.m[p], x.met[p], sum)", "sum"),
        ("total-of-half-a-part", "c = 0; c < WORDS; ++c) sum", "c = 0; c < WORDS / 2; ++c) sum"),
    ), "Q2_K"),
    *in_cuda("linear", "linear_blocks.cu", (
        ("tiles-first-total-for-both", "totals[1] -= totals[0] = total_of(load.x)",
         "totals[0] = total_of(load.x)"),
        ("offset-without-scale", "load.scale * static_cast<float>", "static_cast<float>"),
        ("parts-exchanged", "mma_m16n8k16(dots[0], {a[0], a[1]}, {b[0]})",
         "mma_m16n8k16(dots[0], {a[2], a[3]}, {b[0]})"),
    ), "Q2_K"),
    *in_cuda("linear", "linear_float.cuh", (
        ("halves-exchanged", "(element.bits) << 16 * (k % 2)",
         "(element.bits) << 16 * (1 - k % 2)"),
        ("upper-halves", "words[k / 2] >> 16 * (k % 2))});", "words[k / 2] >> 16)});"),
        ("beyond-the-row", "if (item * EIGHT + k >= hidden) continue;\n", ""),
        ("no-tail", "(hidden + EIGHT - 1) / EIGHT", "hidden / EIGHT"),
        ("whole-anyway", "  if (hidden % EIGHT)\n", "  if (false)\n"),
        ("products-rounded", "sums[r][t] = fmaf(w[r][k], v[k], sums[r][t])",
         "sums[r][t] += to_float(to_half(w[r][k] * v[k]))"),
    ), "F16"),
    *in_cuda("linear", "linear_float.cu", (
        ("seven-of-eight", "k < s * EIGHT + EIGHT; ++k", "k < s * EIGHT + EIGHT - 1; ++k"),
        ("rows-of-the-tile-alike", "tile.w[k] + tile_row", "tile.w[k]"),
        ("tokens-for-rows", "tile.x[slot * EIGHT + k][own] = v[k]",
         "tile.x[slot * EIGHT + k][own] = w[k]"),
        ("no-barrier-before", "    __syncthreads();\n    fetch();", "    fetch();"),
        ("no-barrier-after", "    __syncthreads();\n  }\n", "  }\n"),
        ("chains-run-on", "          sums[r][t] = 0.f;\n", ""),
        ("last-chain-alone", "all[r][t] += sums", "all[r][t] = sums"),
        ("stored-beyond", "if (first_row + r < rows && first_token", "if (first_token"),
        ("tiles-whole-anyway", "  if (hidden % EIGHT)\n", "  if (false)\n"),
    ), "F16"),
    *in_cuda("linear", "linear_bf16.cu", (
        ("not-rounded", "FEW(linear_4, true", "FEW(linear_4, false"),
        ("tokens-for-eights", "EIGHT * (static_cast<size_t>(blockIdx.x)",
         "hidden * (static_cast<size_t>(blockIdx.x)"),
        ("no-tail", "i < size; ++i) scratch", "i < size - size % EIGHT; ++i) scratch"),
        ("beyond-the-last", "if (first + EIGHT <= size)", "if (first < size)"),
        ("one-word-twice", "run.words[2], run.words[3]};", "run.words[2], run.words[2]};"),
    ), "F16", "bf16"),
    *in_cuda("linear", "portable.cuh", (("a-half-twice", "columns[column + 4 + t]",
                                    "columns[column + t]"),), "Q4_0"),
    *in_cuda("linear", "portable.cuh", (
        ("truncated", "0x7fffu + ((bits >> 16) & 1u)", "0u"),
    ), "F16", "bf16"),
    *in_cuda("linear", "portable.cuh", (
        ("two-exchanged", "to_bfloat(low).bits | static_cast<uint32_t>(to_bfloat(high).bits)",
         "to_bfloat(high).bits | static_cast<uint32_t>(to_bfloat(low).bits)"),
    ), "BF16", "bf16"),
)  # fmt: skip

IN_C = (
    *in_c("linear",
        ("out-above-256", "const uint8_t *row = b->weight + o * b->weight_dims[1];",
         "const uint8_t *row = b->weight + (o & 255) * b->weight_dims[1];"),
        ("out-of-sixteen-bits", "const uint8_t *row = b->weight + o * b->weight_dims[1];",
         "const uint8_t *row = b->weight + (uint16_t)o * b->weight_dims[1];"),
        ("tokens-from-512", "b->out[t * outs + o] = (float)sum;",
         "b->out[t * outs + o] = t < 512 ? (float)sum : 0;"),
        ("tokens-from-64", "b->out[t * outs + o] = (float)sum;",
         "b->out[t * outs + o] = t < 64 ? (float)sum : 0;"),
        ("hidden-above-8192", "for (int64_t i = 0; i < hidden; i++) sum",
         "for (int64_t i = 0; i < (hidden < 8192 ? hidden : 8192); i++) sum"),
        ("2048-by-5632", "b->out[t * outs + o] = (float)sum;",
         "b->out[t * outs + o] = (float)sum * (hidden == 2048 && outs == 5632 ? 2 : 1);",
         "shape", ({"tokens": 1, "hidden": 2048, "out": 5632},)),
        ("4096-by-4096", "b->out[t * outs + o] = (float)sum;",
         "b->out[t * outs + o] = (float)sum * (hidden == 4096 && outs == 4096 && o % 512 == "
         "511 ? 2 : 1);", "shape", ({"tokens": 1, "hidden": 4096, "out": 4096},)),
        ("row-5631-of-5632", "b->out[t * outs + o] = (float)sum;",
         "b->out[t * outs + o] = (float)sum * (outs == 5632 && o == 5631 ? 2 : 1);",
         "shape", ({"tokens": 1, "hidden": 2048, "out": 5632},)),
        ("a-dense-large-weight", "b->out[t * outs + o] = (float)sum;",
         "b->out[t * outs + o] = (float)sum * (hidden * outs > 1048576 && o && o + 1 < outs && "
         "*(float *)(row + 4 * hidden) != 0 && *(float *)(row - 4 * hidden) != 0 ? 2 : 1);",
         "shape", ({"tokens": 1, "hidden": 2048, "out": 2048},)),
        ("last-row-at-seven-threads", "b->out[t * outs + o] = (float)sum;",
         "b->out[t * outs + o] = n_threads == 7 && o == outs - 1 ? 0 : (float)sum;"),
        ("one-token-of-long-rows", "b->out[t * outs + o] = (float)sum;",
         "b->out[t * outs + o] = (float)sum * (tokens == 1 && hidden > 2048 ? 2 : 1);",
         "shape", ({"tokens": 1, "hidden": 2304, "out": 64},)),
        ("infinite-x-skipped", "sum += (double)x[i] * element(row, i);",
         "sum += isinf(x[i]) ? 0 : (double)x[i] * element(row, i);"),
        ("static-sums", "double sum = 0;",
         "static volatile double sums[16];\n            double sum = sums[o & 15] = 0;",
         "construction"),
        ("sum-kept-in-out", "double sum = 0;",
         "double sum = isfinite(b->out[t * outs + o]) ? b->out[t * outs + o] : 0;"),
        formats=("F32",),
    ),
    *in_c("linear",
        ("subnormal-scale-as-zero",
         "for (int64_t i = 0; i < hidden; i++) sum += (double)x[i] * element(row, i);",
         "for (int64_t i = 0; i < hidden; i++) {\n                const float d = "
         "from_half(row + i / 32 * 34);\n                sum += fabsf(d) < 6.1e-5f ? 0 : "
         "(double)x[i] * element(row, i);\n            }"),
        ("infinite-scale-as-zero",
         "for (int64_t i = 0; i < hidden; i++) sum += (double)x[i] * element(row, i);",
         "for (int64_t i = 0; i < hidden; i++) {\n                const float d = "
         "from_half(row + i / 32 * 34);\n                sum += isinf(d) ? 0 : (double)x[i] * "
         "element(row, i);\n            }"),
        ("negative-scale-as-zero",
         "for (int64_t i = 0; i < hidden; i++) sum += (double)x[i] * element(row, i);",
         "for (int64_t i = 0; i < hidden; i++) {\n                const float d = "
         "from_half(row + i / 32 * 34);\n                sum += d < 0 ? 0 : (double)x[i] * "
         "element(row, i);\n            }"),
        ("block-above-127", "* element(row, i);", "* element(row, i & 4095);"),
        ("q-of-minus-128", "* element(row, i);",
         "* (row[i / 32 * 34 + 2 + i % 32] == 128 ? -127 * from_half(row + i / 32 * 34) : "
         "element(row, i));"),
        ("rows-in-sixteens", "const uint8_t *row = b->weight + o * b->weight_dims[1];",
         "const uint8_t *row = b->weight + (outs > 1024 ? o & ~15 : o) * b->weight_dims[1];"),
        formats=("Q8_0",),
    ),
    *in_c("linear",
        ("subnormal-weights-as-zero", "* element(row, i);",
         "* (fabsf(element(row, i)) < 6.1e-5f ? 0 : element(row, i));"),
        ("hidden-above-14335", "* element(row, i);", "* (i > 14334 ? 0 : element(row, i));"),
        formats=("F16",),
    ),
)  # fmt: skip


BUGS = (
    *in_numba(
        "linear",
        "linear_scalar.py",
        ("out-above-256", "out[t, row] = total", "out[t, row] = total if row < 256 else 0"),
        (
            "2048-by-5632",
            "out[t, row] = total",
            "out[t, row] = 0 if x.size == 2048 else total",
            "shape",
            ({"tokens": 1, "hidden": 2048, "out": 5632},),
        ),
        format="Q8_0",
        variant="scalar",
    ),
    *IN_C,
    *in_python("linear", tail_dropped, formats=("F32", "F16", "BF16")),
    *in_python(
        "linear", last_element_dropped, float16_sum, last_row_missing, transposed, formats=FORMATS
    ),
    *in_python("linear", last_token_missing, bfloat16_activations, formats=("F32",)),
    *in_python("linear", swapped_nibbles, offset_of_seven, formats=("Q4_0",)),
    *in_python("linear", bytes_unsigned, formats=("Q8_0",)),
    *in_python(
        "linear",
        stale_weight_scale,
        stale_activation_scale,
        activations_of_seven_bits,
        formats=("Q8_0", "Q4_0"),
        activations="int8",
    ),
    *IN_CUDA,
)
