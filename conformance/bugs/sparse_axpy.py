"""Planted bugs of sparse_axpy."""

from typing import Any

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_python, sharing
from conformance.bugs.sparse_rows import (
    OF_COUNTS_AND_SLOTS,
    Inputs,
    Outputs,
    active_of,
    slots_ignored,
    slots_of_the_list,
    some_rows,
)
from reference.formats import FORMATS
from reference.op import Arguments, Array
from reference.sparse_axpy import sparse_axpy


def over(inputs: Inputs, rows: Array) -> Array:
    """sparse_axpy over these neurons, active or not."""
    listed = {"rows": rows, "count": np.array([len(rows)])}
    return sparse_axpy(**{**inputs, **listed, "slots": some_rows(inputs, inputs["slots"])})


def all_neurons(**inputs: Any) -> Array:
    return over(inputs, np.arange(len(inputs["rows"])))


def last_row_dropped(**inputs: Any) -> Array:
    return over(inputs, active_of(inputs)[:-1])


def last_partial_four_dropped(**inputs: Any) -> Array:
    active = active_of(inputs)
    return over(inputs, active[: len(active) // 4 * 4])


def filled_up_to_four(**inputs: Any) -> Array:
    """The last four are filled up with what is behind the last row."""
    active = active_of(inputs)
    return over(inputs, np.append(active, np.zeros(-len(active) % 4, int)))


def factors_side_by_side(**inputs: Any) -> Array:
    """The j-th row's factor taken for the j-th neuron's."""
    a, active = inputs["a"].copy(), active_of(inputs)
    a[:, active] = inputs["a"][:, : len(active)]
    return sparse_axpy(**{**inputs, "a": a})


def sum_with_slots_ignored(**inputs: Any) -> Array:
    return sparse_axpy(**slots_ignored(inputs))


def sum_with_slots_of_the_list(**inputs: Any) -> Array:
    return sparse_axpy(**slots_of_the_list(inputs))


def sum_of_the_neighbours_rows(**inputs: Any) -> Array:
    return sparse_axpy(**{**inputs, "weight": np.roll(inputs["weight"], 1, axis=0)})


def negative_factors_skipped(**inputs: Any) -> Array:
    """As if the activation always were relu."""
    return sparse_axpy(**{**inputs, "a": np.maximum(inputs["a"], 0)})


def first_tokens_factors(**inputs: Any) -> Array:
    a = np.broadcast_to(inputs["a"][:1], inputs["a"].shape)
    return sparse_axpy(**{**inputs, "a": a})


def sum_in_float16(
    a: Array, weight: Array, rows: Array, count: Array, slots: Array, format: str
) -> Array:
    w = FORMATS[format].dequantise(weight)
    out = np.zeros((len(a), w.shape[1]), np.float16)
    for row in rows[: count[0]]:
        out = (out + a[:, row, None] * w[slots[row]]).astype(np.float16)
    return out


def adds_lost(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """A race: threads divide neurons, and each adds to what stood there before any had added."""
    outputs["out"][...] = over(inputs, np.array_split(active_of(inputs), n_threads)[thread])


def adds_as_they_come(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """Threads divide neurons, and add up their sums in whatever order they come, in float32."""
    if thread == 0:
        outputs["out"][...] = 0
    mine = np.array_split(active_of(inputs), n_threads)[thread]
    outputs["out"][...] += over(inputs, mine).astype(np.float32)


IN_CUDA = (
    *in_cuda("sparse_axpy", "sparse_axpy.cu", (
        ("search-too-far", "end = min(end, begin + step - 1);", "end = begin + step;"),
        ("last-of-the-below", "rows[probe] < value", "rows[probe] <= value"),
        ("ended-early", "n * (strand + 1) / strands)", "n * (strand + 1) / strands - 1)"),
        ("rows-as-listed", "listed ? s.slots[neuron] : 0", "listed ? neuron : 0"),
        ("factor-of-the-entry", "* s.neurons + neuron", "* s.neurons + entry + lane"),
        ("factors-of-none", "listed && t < s.tokens ? s.a[at] : 0.f", "listed ? s.a[at] : 0.f"),
        ("factor-of-the-lane", "__shfl_sync(ALL, factors[t], from[b])", "factors[t]"),
        ("row-of-the-lane", "__shfl_sync(ALL, slot, from[b])", "slot"),
        ("one-row-for-all", "__ffs(left) - 1 : 0", "__ffs(left | 1) - 1 : 0"),
        ("no-barrier-before-adding", "sums[t][k + 3]};\n    __syncthreads();",
         "sums[t][k + 3]};"),
        ("no-barrier-after-adding", "totals[t] += total;\n    __syncthreads();",
         "totals[t] += total;"),
        ("a-warp-less", "w < WARPS; ++w) total", "w < WARPS - 1; ++w) total"),
        ("one-split", "alone ? 0 : blockIdx.y; split < last", "alone ? 0 : blockIdx.y; split < 1"),
        ("beyond-the-row", "  if (column >= s.hidden) return;\n", ""),
        ("tokens-of-the-first", "s.first = blockIdx.z * TOKENS", "s.first = 0"),
    ), "F32"),
    *in_cuda("sparse_axpy", "sparse_axpy_merge.cu", (
        ("without-the-last", "s < splits; ++s", "s < splits - 1; ++s"),
        ("first-again", "scratch[s * size + i]", "scratch[i]"),
        ("one-too-many", "if (i >= size)", "if (i > size)"),
    ), "F32"),
    *in_cuda("sparse_axpy", "sparse_axpy.cuh", (
        ("more-splits-than-there-are", "neurons / 512", "neurons / 256"),
    ), "F32"),
    *in_cuda("sparse_axpy", "pieces.cuh", (
        ("bytes-exchanged", "half_word(at) | half_word(at + 2) << 16",
         "half_word(at + 2) | half_word(at) << 16"),
        ("same-four", "k < 4 ? low : high", "k < 8 ? low : high"),
        ("unsigned", "static_cast<int8_t>((k < 4", "static_cast<uint8_t>((k < 4"),
    ), "Q8_0"),
    *in_cuda("sparse_axpy", "pieces.cuh", (
        ("lower-halves-alone", "8 * (k % 4) + k / 4 * 4", "8 * (k % 4)"),
        ("eight-side-by-side", "lane % 4 * 4 + k / 4 * 16 + k % 4", "lane % 4 * 8 + k"),
    ), "Q4_0"),
    *in_cuda("sparse_axpy", "pieces.cuh", (
        ("floor-added", "& 15) - floor", "& 15) + floor"),
        ("same-part", "lane / 8 * 2 + p);\n      six_bits[2 * p + 1]",
         "lane / 8 * 2);\n      six_bits[2 * p + 1]"),
    ), "Q4_K"),
)  # fmt: skip

IN_C = (
    *in_c("sparse_axpy", *OF_COUNTS_AND_SLOTS, formats=("F32",)),
    *in_c("sparse_axpy",
        ("hidden-above-4096", ", i);", ", i & 4095);"),
        formats=("Q8_0",),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python(
        "sparse_axpy",
        all_neurons,
        last_row_dropped,
        last_partial_four_dropped,
        filled_up_to_four,
        factors_side_by_side,
        sum_of_the_neighbours_rows,
        sum_with_slots_ignored,
        sum_with_slots_of_the_list,
        negative_factors_skipped,
        first_tokens_factors,
        sum_in_float16,
        formats=("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"),
    ),
    *sharing(
        "sparse_axpy",
        adds_lost,
        adds_as_they_come,
        formats=("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"),
    ),
    *IN_CUDA,
)
