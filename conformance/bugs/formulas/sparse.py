"""Planted bugs of sparse linear layers."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.bugs.bug import in_python, sharing
from reference.op import Arguments, Array
from reference.sparse.neuron_masks import active_rows
from reference.sparse.sparse_axpy import sparse_axpy
from reference.sparse.sparse_linear import FORMATS_OF_SPARSE, sparse_linear

Inputs = dict[str, Any]
Outputs = Mapping[str, Array]


def some_rows(inputs: Inputs, slots: Array) -> Array:
    """Slots clipped to the held rows, so that a bug has rows to read."""
    return slots % len(inputs["weight"])


def active_of(inputs: Inputs) -> Array:
    return np.asarray(inputs["rows"][: inputs["count"][0]])


def same_place(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """A race: every thread stores its part's rows at the front."""
    neurons = inputs["mask"].shape[1]
    begin, end = (neurons * n // n_threads for n in (thread, thread + 1))
    rows, count = active_rows(inputs["mask"][:, begin:end])
    for out in outputs.values():
        out[...] = 0
    outputs["rows"][: count[0]] = rows[: count[0]] + begin
    outputs["count"] += count


def left_together(**inputs: Any) -> Array:
    """The active neurons' outputs are stored densely, not at the neurons' positions."""
    out, active = np.zeros(inputs["mask"].shape), inputs["rows"][: inputs["count"][0]]
    out[:, : len(active)] = sparse_linear(**inputs)[:, active]
    return out


def rows_of_the_group(**inputs: Any) -> Array:
    """Lanes after the last neuron use the zero entries of `rows`, too, and store their outputs."""
    out, rest = sparse_linear(**inputs), -inputs["count"][0] % 16
    if rest and inputs["rows"].size:
        everyone = np.ones_like(inputs["mask"])
        of_zero = {"mask": everyone, "rows": np.zeros(1, int), "count": np.array([1])}
        slots = some_rows(inputs, inputs["slots"])
        out[:, 0] = sparse_linear(**{**inputs, **of_zero, "slots": slots})[:, 0]
    return out


def not_zeroed(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """Outputs of inactive neurons are never stored."""
    active = inputs["mask"] == (1 if thread == 0 else 2)
    outputs["out"][active] = sparse_linear(**inputs)[active]


LIKES = "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K"


def over(inputs: Inputs, rows: Array) -> Array:
    """sparse_axpy over these neurons, active or not."""
    listed = {"rows": rows, "count": np.array([len(rows)])}
    return sparse_axpy(**{**inputs, **listed, "slots": some_rows(inputs, inputs["slots"])})


def adds_lost(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """A race: threads divide neurons, and each adds to the initial output."""
    outputs["out"][...] = over(inputs, np.array_split(active_of(inputs), n_threads)[thread])


def adds_as_they_come(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """Threads divide neurons and add their sums in arbitrary order, in float32."""
    if thread == 0:
        outputs["out"][...] = 0
    mine = np.array_split(active_of(inputs), n_threads)[thread]
    outputs["out"][...] += over(inputs, mine).astype(np.float32)


BUGS = (
    *sharing("active_rows", same_place),
    *in_python("sparse_linear", left_together, rows_of_the_group, formats=FORMATS_OF_SPARSE),
    *sharing("sparse_linear", not_zeroed, formats=FORMATS_OF_SPARSE),
    *sharing("sparse_axpy", adds_lost, adds_as_they_come, formats=LIKES),
)
