"""Planted bugs of networks whose neurons are skipped."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python, sharing
from reference.activations import sigmoid
from reference.formats import FORMATS
from reference.op import Arguments, Array
from reference.sparse.neuron_masks import (
    active_rows,
    add_counts,
    neuron_split,
    threshold_mask,
    union_mask,
    where_active,
)
from reference.sparse.sparse_axpy import sparse_axpy
from reference.sparse.sparse_linear import FORMATS_OF_SPARSE, sparse_linear

Inputs = dict[str, Any]
Outputs = Mapping[str, Array]
Found = tuple[Array, Array]


def some_rows(inputs: Inputs, slots: Array) -> Array:
    """Slots within what is held, so that a bug has rows to read."""
    return slots % len(inputs["weight"])


def slots_ignored(inputs: Inputs) -> Inputs:
    """Neuron i's row taken for row i."""
    return {**inputs, "slots": some_rows(inputs, np.arange(len(inputs["slots"])))}


def slots_of_the_list(inputs: Inputs) -> Inputs:
    """slots[j] taken for the j-th active neuron's, not for neuron j's."""
    active = active_of(inputs)
    slots = np.zeros_like(inputs["slots"])
    slots[active] = some_rows(inputs, inputs["slots"][: len(active)])
    return {**inputs, "slots": slots}


def active_of(inputs: Inputs) -> Array:
    return np.asarray(inputs["rows"][: inputs["count"][0]])


def first_token_alone(mask: Array) -> Array:
    return np.broadcast_to(mask[:1], mask.shape)


def count_off_by_one(mask: Array) -> Found:
    rows, count = active_rows(mask)
    return rows, count + 1


def stale_behind(mask: Array) -> Found:
    """What is behind the last row is left as the search for it made it."""
    rows, count = active_rows(mask)
    rows[count[0] :] = mask.any(axis=0)[count[0] :]
    return rows, count


def descending(mask: Array) -> Found:
    rows, count = active_rows(mask)
    rows[: count[0]] = rows[: count[0]][::-1].copy()
    return rows, count


def once_a_token(mask: Array) -> Found:
    """A neuron listed for every token that needs it, as far as there is room."""
    rows, found = np.zeros(mask.shape[1], int), np.sort(np.nonzero(mask)[1])[: mask.shape[1]]
    rows[: len(found)] = found
    return rows, np.array([len(found)])


def same_place(inputs: Arguments, outputs: Outputs, thread: int, n_threads: int) -> None:
    """A race: every thread puts its part's rows at the front."""
    neurons = inputs["mask"].shape[1]
    begin, end = (neurons * n // n_threads for n in (thread, thread + 1))
    rows, count = active_rows(inputs["mask"][:, begin:end])
    for out in outputs.values():
        out[...] = 0
    outputs["rows"][: count[0]] = rows[: count[0]] + begin
    outputs["count"] += count


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
        "threshold_mask",
        strictly_above=lambda logits, threshold: logits > threshold,
        of_the_sigmoid=changed(threshold_mask, logits=sigmoid),
        of_magnitudes=changed(threshold_mask, logits=np.abs),
        first_token_for_all=lambda logits, threshold: np.broadcast_to(
            threshold_mask(logits[:1], threshold), logits.shape
        ),
    ),
    *in_python(
        "union_mask",
        first_token_alone,
        without_the_last_token=lambda mask: np.broadcast_to(
            mask[:-1].max(axis=0, initial=0), mask.shape
        ),
        of_every_token=lambda mask: np.broadcast_to(mask.min(axis=0, initial=1), mask.shape),
        counted=lambda mask: np.broadcast_to(mask.sum(axis=0), mask.shape),
    ),
    *in_python(
        "neuron_split",
        at_the_other_place=changed(neuron_split, place=lambda place: 1 - place),
        places_ignored=lambda mask, places, place: mask,
        place_of_the_next=changed(neuron_split, places=lambda places: np.roll(places, 1)),
    ),
    *in_python(
        "active_rows",
        count_off_by_one,
        stale_behind,
        descending,
        once_a_token,
        of_the_first_token=lambda mask: active_rows(mask[:1]),
        last_neuron_missed=lambda mask: active_rows(
            mask * (np.arange(mask.shape[1]) < mask.shape[1] - 1)
        ),
    ),
    *sharing("active_rows", same_place),
    *in_python(
        "add_counts",
        counted_anew=lambda mask, before: np.asarray(add_counts(mask, 0 * before)),
        once_for_all_tokens=lambda mask, before: np.asarray(before + mask.any(axis=0)),
        counted_in_a_byte=lambda mask, before: np.asarray(
            add_counts(mask, before).astype(np.uint8)
        ),
    ),
    *in_python(
        "where_active",
        inactive_kept=lambda x, mask: x,
        active_zeroed=changed(where_active, mask=lambda mask: 1 - mask),
        where_active_for_the_first=changed(where_active, mask=first_token_alone),
    ),
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
