"""Planted bugs of sparse_linear."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python, sharing
from conformance.bugs.sparse_rows import Outputs, slots_ignored, slots_of_the_list, some_rows
from reference.op import Arguments, Array
from reference.sparse.neuron_masks import union_mask
from reference.sparse.sparse_linear import FORMATS_OF_SPARSE, sparse_linear


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


BUGS = (
    *in_python(
        "sparse_linear",
        left_together,
        rows_of_the_group,
        # Every needed neuron for every token.
        mask_ignored=changed(sparse_linear, mask=union_mask),
        mask_of_the_first_token=changed(
            sparse_linear, mask=lambda mask: np.broadcast_to(mask[:1], mask.shape)
        ),
        product_with_the_neighbours_row=changed(
            sparse_linear, weight=lambda weight: np.roll(weight, 1, axis=0)
        ),
        product_with_slots_ignored=lambda **inputs: sparse_linear(**slots_ignored(inputs)),
        product_with_slots_of_the_list=lambda **inputs: sparse_linear(**slots_of_the_list(inputs)),
        last_partial_group_dropped=changed(sparse_linear, count=lambda count: count // 16 * 16),
        last_neuron_dropped=changed(sparse_linear, count=lambda count: np.maximum(count - 1, 0)),
        formats=FORMATS_OF_SPARSE,
    ),
    *sharing("sparse_linear", not_zeroed, formats=FORMATS_OF_SPARSE),
)
