"""Planted bugs of sparse_linear."""

from typing import Any

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_python, sharing
from conformance.bugs.sparse_rows import (
    OF_COUNTS_AND_SLOTS,
    Outputs,
    slots_ignored,
    slots_of_the_list,
    some_rows,
)
from reference.neuron_masks import union_mask
from reference.op import Arguments, Array
from reference.sparse_linear import FORMATS_OF_SPARSE, sparse_linear


def first_token_alone(mask: Array) -> Array:
    return np.broadcast_to(mask[:1], mask.shape)


def product_with_slots_ignored(**inputs: Any) -> Array:
    return sparse_linear(**slots_ignored(inputs))


def product_with_slots_of_the_list(**inputs: Any) -> Array:
    return sparse_linear(**slots_of_the_list(inputs))


def mask_ignored(**inputs: Any) -> Array:
    """Every needed neuron for every token."""
    return sparse_linear(**{**inputs, "mask": union_mask(inputs["mask"])})


def mask_of_the_first_token(**inputs: Any) -> Array:
    return sparse_linear(**{**inputs, "mask": first_token_alone(inputs["mask"])})


def product_with_the_neighbours_row(**inputs: Any) -> Array:
    return sparse_linear(**{**inputs, "weight": np.roll(inputs["weight"], 1, axis=0)})


def last_partial_group_dropped(**inputs: Any) -> Array:
    return sparse_linear(**{**inputs, "count": inputs["count"] // 16 * 16})


def last_neuron_dropped(**inputs: Any) -> Array:
    return sparse_linear(**{**inputs, "count": np.maximum(inputs["count"] - 1, 0)})


def left_together(**inputs: Any) -> Array:
    """The needed neurons' outputs side by side, not where the neurons stand."""
    out, active = np.zeros(inputs["mask"].shape), inputs["rows"][: inputs["count"][0]]
    out[:, : len(active)] = sparse_linear(**inputs)[:, active]
    return out


def rows_of_the_group(**inputs: Any) -> Array:
    """Lanes behind the last neuron have a row too, the zero that stands there, and store it."""
    out, rest = sparse_linear(**inputs), -inputs["count"][0] % 16
    if rest and inputs["rows"].size:
        everyone = np.ones_like(inputs["mask"])
        of_zero = {"mask": everyone, "rows": np.zeros(1, int), "count": np.array([1])}
        slots = some_rows(inputs, inputs["slots"])
        out[:, 0] = sparse_linear(**{**inputs, **of_zero, "slots": slots})[:, 0]
    return out


def not_zeroed(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """Outputs of inactive neurons never stored."""
    active = inputs["mask"] == (1 if thread == 0 else 2)
    outputs["out"][active] = sparse_linear(**inputs)[active]


IN_CUDA = (
    *in_cuda("sparse_linear", "sparse_linear_float.cu", (
        ("one-less", "k < size; ++k)", "k < size - 1; ++k)"),
        ("same-token", "x[static_cast<size_t>(t) * hidden + k]", "x[k]"),
        ("words-anywhere", "hidden % 4 == 0;", "true;"),
        ("same-item", "+ lane * EIGHT;\n    const float", "+ 0 * EIGHT;\n    const float"),
        ("tile-of-the-first", "own + r * TILE)", "own)"),
    ), "F32"),
    *in_cuda("sparse_linear", "rows.cuh", (
        ("rows-as-listed", "static_cast<size_t>(slots[neuron])", "static_cast<size_t>(neuron)"),
        ("anywhere-aligned", "(reinterpret_cast<uint64_t>(bytes) | stride) % sizeof(uint4) == 0",
         "true"),
        ("tail-left-out", "i < size; i += WARP) tile[i]", "i < size - 1; i += WARP) tile[i]"),
        ("beyond-the-row", "size = min(BYTES, end - begin)", "size = BYTES"),
        ("zeros-everywhere", "if (neuron < active.neurons && !active.mask[at])",
         "if (neuron < active.neurons)"),
        ("no-zeros", "  put_zeros(active, first, tokens, out);\n", ""),
        ("active-or-not", "  if (active.mask[at]) out[at] = sum", "  out[at] = sum"),
        ("token-beyond", "token >= tokens || entry", "entry"),
        ("entry-beyond", " || entry >= active.count) return;\n  const", ") return;\n  const"),
        ("rows-of-one-warp", "(blockIdx.x * WARPS + warp) * ROWS", "blockIdx.x * WARPS * ROWS"),
        ("first-tile-again", "coming[r].load(rows[r], begin, row_bytes, aligned)",
         "coming[r].load(rows[r], 0, row_bytes, aligned)"),
        ("no-barrier-before-meeting", "put(tiles + r * BYTES);\n    __syncwarp();",
         "put(tiles + r * BYTES);"),
        ("no-barrier-after-meeting", "meet(tiles, tile, first, tokens, sums);\n    __syncwarp();",
         "meet(tiles, tile, first, tokens, sums);"),
        ("sums-of-all-warps-together", "  partial += warp * PARTIAL<ROWS, TOKENS>;\n", ""),
    ), "F32"),
    *in_cuda("sparse_linear", "sparse_linear_blocks.cu", (
        ("bytes-from-the-scale-on",
         "word(block + 2 + 4 * i);\n    return found;\n  }\n};\n\nstruct q4_0",
         "word(block + 4 * i);\n    return found;\n  }\n};\n\nstruct q4_0"),
        ("scale-of-the-first", "x.scale[at]", "x.scale[part]"),
        ("dot-without-the-last", "i < WORDS; ++i) dot", "i < WORDS - 1; ++i) dot"),
        ("parts-beyond", "    if (part >= x.parts) return;\n", ""),
    ), "Q8_0"),
    *in_cuda("sparse_linear", "sparse_linear_blocks.cu", (
        ("raised-by-seven", "BYTES = 18, RAISED = 8", "BYTES = 18, RAISED = 7"),
        ("nibbles-exchanged", "both >> 4 & 0x0f0f0f0fu", "both & 0x0f0f0f0fu"),
    ), "Q4_0"),
    *in_cuda("sparse_linear", "sparse_linear_blocks.cu", (
        ("no-floors", "BYTES = 144, RAISED = 0;\n  static constexpr bool FLOORS = true",
         "BYTES = 144, RAISED = 0;\n  static constexpr bool FLOORS = false"),
        ("floors-added", "-rows[r].floor", "rows[r].floor"),
        ("upper-parts-as-lower", "if (p < 4)", "if (p < 8)"),
        ("parts-exchanged", "both >> 4 * (p % 2)", "both >> 4 * (1 - p % 2)"),
        ("upper-bits-of-the-minimum", "six[p + 4] >> 4 | six[p] >> 6 << 4",
         "six[p + 4] >> 4 | six[p - 4] >> 6 << 4"),
    ), "Q4_K"),
)  # fmt: skip

IN_C = (
    *in_c("sparse_linear", *OF_COUNTS_AND_SLOTS, formats=("F32",)),
    *in_c("sparse_linear",
        ("hidden-above-4096", "element(row, i)", "element(row, i & 4095)"),
        formats=("Q8_0",),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python(
        "sparse_linear",
        mask_ignored,
        mask_of_the_first_token,
        product_with_the_neighbours_row,
        product_with_slots_ignored,
        product_with_slots_of_the_list,
        last_partial_group_dropped,
        last_neuron_dropped,
        left_together,
        rows_of_the_group,
        formats=FORMATS_OF_SPARSE,
    ),
    *sharing("sparse_linear", not_zeroed, formats=FORMATS_OF_SPARSE),
    *IN_CUDA,
)
