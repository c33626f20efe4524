"""Planted bugs of sparse_axpy."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python, sharing
from conformance.bugs.sparse_rows import (
    Inputs,
    Outputs,
    active_of,
    slots_ignored,
    slots_of_the_list,
    some_rows,
)
from reference.formats import FORMATS
from reference.op import Arguments, Array
from reference.sparse.sparse_axpy import sparse_axpy

LIKES = "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"


def over(inputs: Inputs, rows: Array) -> Array:
    """sparse_axpy over these neurons, active or not."""
    listed = {"rows": rows, "count": np.array([len(rows)])}
    return sparse_axpy(**{**inputs, **listed, "slots": some_rows(inputs, inputs["slots"])})


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


BUGS = (
    *in_python(
        "sparse_axpy",
        last_partial_four_dropped,
        filled_up_to_four,
        factors_side_by_side,
        sum_in_float16,
        first_tokens_factors=changed(sparse_axpy, a=lambda a: np.broadcast_to(a[:1], a.shape)),
        all_neurons=lambda **inputs: over(inputs, np.arange(len(inputs["rows"]))),
        last_row_dropped=lambda **inputs: over(inputs, active_of(inputs)[:-1]),
        sum_of_the_neighbours_rows=changed(
            sparse_axpy, weight=lambda weight: np.roll(weight, 1, axis=0)
        ),
        sum_with_slots_ignored=lambda **inputs: sparse_axpy(**slots_ignored(inputs)),
        sum_with_slots_of_the_list=lambda **inputs: sparse_axpy(**slots_of_the_list(inputs)),
        # As if the activation always were relu.
        negative_factors_skipped=changed(sparse_axpy, a=lambda a: np.maximum(a, 0)),
        formats=LIKES,
    ),
    *sharing("sparse_axpy", adds_lost, adds_as_they_come, formats=LIKES),
)
