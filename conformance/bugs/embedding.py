"""Planted bugs of embedding."""

import numpy as np

from conformance.bugs.bug import Bug, Edit, in_c, in_cuda, in_python
from reference.embedding import embedding
from reference.op import Array


def previous_row(tokens: Array, weight: Array, format: str) -> Array:
    return embedding(tokens - 1, weight, format)


def scaled_by_width(tokens: Array, weight: Array, format: str) -> Array:
    return embedding(tokens, weight, format) * np.sqrt(weight.shape[1])


def element(format: str, name: str, old: str, new: str) -> Bug:
    file = "lattices.cuh" if format[:3] in ("IQ1", "IQ2", "IQ3") else "formats.cuh"
    return Bug("embedding", "cuda", name, Edit(file, old, new), format)


IN_CUDA = (
    *in_cuda("embedding", "embedding.cu", (
        ("one-too-many", "i >= hidden", "i > hidden"),
        ("row-of-the-place", "ids[blockIdx.x]", "blockIdx.x"),
        ("first-block-of-a-row", "blockIdx.y * blockDim.x + threadIdx.x", "threadIdx.x"),
        ("first-element", "FORMAT::element(block, i % FORMAT::BLOCK)", "FORMAT::element(block, 0)"),
        ("same-block", "first + i / FORMAT::BLOCK", "first"),
    ), "Q8_0"),
    element("F32", "bytes-exchanged", "word16(at) | word16(at + 2) << 16",
            "word16(at + 2) | word16(at) << 16"),
    element("F16", "byte-missing", "static_cast<uint32_t>(at[1]) << 8", "0"),
    element("BF16", "as-float16", "to_float(bfloat_t{", "to_float(half_t{"),
    element("Q8_0", "unsigned", "static_cast<int8_t>(block[2 + i])", "block[2 + i]"),
    element("Q4_0", "nibbles-side-by-side", "field<4, 16>(block + 2, i) - 8",
            "field<4, 1>(block + 2, i) - 8"),
    element("Q4_0", "raised", "(block + 2, i) - 8)", "(block + 2, i) - 7)"),
    element("Q4_1", "no-minimum", "field<4, 16>(block + 4, i) + half_at(block + 2)",
            "field<4, 16>(block + 4, i)"),
    element("Q5_0", "fifth-bit-reversed", "field<1, 1>(block + 2, i)",
            "field<1, 1>(block + 2, 31 - i)"),
    element("Q5_1", "no-fifth-bit", " | field<1, 1>(block + 4, i) << 4", ""),
    element("Q2_K", "scale-for-minimum", "(part >> 4)", "(part & 15)"),
    element("Q3_K", "third-bit-inverted", "field<1, 32>(block, i) << 2",
            "(field<1, 32>(block, i) ^ 1) << 2"),
    element("Q3_K", "scale-not-lowered", "(part - 32) * (q - 4)", "part * (q - 4)"),
    element("Q4_K", "scales-of-four-bits", "(packed[4 + part] & 15) | (low >> 2 & 48)",
            "packed[4 + part] & 15"),
    element("Q4_K", "minimum-of-the-scale", "six_bit_minimum(block + 4, part)",
            "six_bit_scale(block + 4, part)"),
    element("Q4_K", "parts-exchanged", "i / 32, field<4, 32>(block + 16, i)",
            "i / 32 ^ 1, field<4, 32>(block + 16, i)"),
    element("Q5_K", "no-fifth-bit", " | field<1, 32>(block + 16, i) << 4;\n    return with_minimum",
            ";\n    return with_minimum"),
    element("Q6_K", "runs-of-32", "field<4, 64>(block, i)", "field<4, 32>(block, i)"),
    element("Q6_K", "unsigned-scale", "static_cast<int8_t>(block[192 + i / 16])",
            "block[192 + i / 16]"),
    element("IQ4_NL", "linear", "NL[field<4, 16>(block + 2, i)]",
            "(field<4, 16>(block + 2, i) - 8)"),
    element("IQ4_XS", "scales-of-four-bits", " | field<2, 1>(block + 2, i / 32) << 4", ""),
    element("MXFP4", "twice", "(e - 1) << 23", "e << 23"),
    element("TQ1_0", "four-runs", "i < 160 ? i / 32", "i < 128 ? i / 32"),
    element("TQ1_0", "digit-two-thirds", "left * 3 >> 8", "left * 2 >> 8"),
    element("TQ2_0", "runs-of-64", "field<2, 32>(block, i) - 1", "field<2, 64>(block, i) - 1"),
    element("IQ1_S", "never-down", "moved(IQ1_GRID[index], i % 8, upper >> 15)",
            "moved(IQ1_GRID[index], i % 8, 0)"),
    element("IQ1_M", "half-of-d", "block[49] >> 4", "block[49] & 15"),
    element("IQ2_XXS", "signs-of-seven", "sevens | (__popc(sevens) & 1u) << 7", "sevens"),
    element("IQ2_XS", "index-of-eight-bits", "group & 511", "group & 255"),
    element("IQ2_S", "signs-exchanged", "block[34 + group]", "block[34 + (group ^ 1)]"),
    element("IQ3_XXS", "even-steps", "plain == 120 ? 124 : plain", "plain"),
    element("IQ3_S", "no-ninth-bit", " | field<1, 1>(block + 66, group) << 8", ""),
)  # fmt: skip

IN_C = (
    *in_c("embedding",
        ("token-of-sixteen-bits", "const int64_t token = b->tokens[t];",
         "const int64_t token = (uint16_t)b->tokens[t];"),
        ("token-of-15-bits", "const int64_t token = b->tokens[t];",
         "const int64_t token = b->tokens[t] & 32767;"),
        ("hidden-above-4096", "element(row, i);", "element(row, i & 4095);"),
        ("tokens-above-64", "const int64_t token = b->tokens[t];",
         "const int64_t token = b->tokens[t & 63];"),
        ("hidden-of-3072", "element(row, i);", "element(row, i) * (hidden == 3072 ? 2 : 1);",
         "shape", ({"tokens": 1, "vocab": 32000, "hidden": 3072},)),
        formats=("F32",),
    ),
    *in_c("embedding",
        ("subnormal-scale-as-zero", "element(row, i);",
         "fabsf(from_half(row + i / 32 * 34)) < 6.1e-5f ? 0 : element(row, i);"),
        ("block-above-127", "element(row, i);", "element(row, i & 4095);"),
        formats=("Q8_0",),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python("embedding", previous_row, formats=("F32", "Q4_0")),
    *in_python("embedding", scaled_by_width, formats=("F16",)),
    *IN_CUDA,
)
