"""Planted bugs of PowerInfer's ops: masks of neurons, and products over active ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from conformance.wrong.wrong import Wrong, computing
from reference.activations import sigmoid
from reference.formats import FORMATS
from reference.neuron_masks import (
    active_rows,
    add_counts,
    neuron_split,
    threshold_mask,
    union_mask,
    where_active,
)
from reference.op import Arguments, Array
from reference.sparse_axpy import sparse_axpy
from reference.sparse_linear import FORMATS_OF_SPARSE, sparse_linear

Inputs = dict[str, Any]
Outputs = Mapping[str, Array]
Found = tuple[Array, Array]


def strictly_above(logits: Array, threshold: float) -> Array:
    return logits > threshold


def of_the_sigmoid(logits: Array, threshold: float) -> Array:
    return threshold_mask(sigmoid(logits), threshold)


def of_magnitudes(logits: Array, threshold: float) -> Array:
    return threshold_mask(np.abs(logits), threshold)


def first_token_for_all(logits: Array, threshold: float) -> Array:
    return np.broadcast_to(threshold_mask(logits[:1], threshold), logits.shape)


def first_token_alone(mask: Array) -> Array:
    return np.broadcast_to(mask[:1], mask.shape)


def without_the_last_token(mask: Array) -> Array:
    return np.broadcast_to(mask[:-1].max(axis=0, initial=0), mask.shape)


def of_every_token(mask: Array) -> Array:
    return np.broadcast_to(mask.min(axis=0, initial=1), mask.shape)


def counted(mask: Array) -> Array:
    return np.broadcast_to(mask.sum(axis=0), mask.shape)


def at_the_other_place(mask: Array, places: Array, place: float) -> Array:
    return neuron_split(mask, places, 1 - place)


def places_ignored(mask: Array, places: Array, place: float) -> Array:
    return mask


def place_of_the_next(mask: Array, places: Array, place: float) -> Array:
    return neuron_split(mask, np.roll(places, 1), place)


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


def of_the_first_token(mask: Array) -> Found:
    return active_rows(mask[:1])


def last_neuron_missed(mask: Array) -> Found:
    return active_rows(mask * (np.arange(mask.shape[1]) < mask.shape[1] - 1))


def once_a_token(mask: Array) -> Found:
    """A neuron listed for every token that needs it, as far as there is room."""
    rows, found = np.zeros(mask.shape[1], int), np.sort(np.nonzero(mask)[1])[: mask.shape[1]]
    rows[: len(found)] = found
    return rows, np.array([len(found)])


def counted_anew(mask: Array, before: Array) -> Array:
    return np.asarray(add_counts(mask, 0 * before))


def once_for_all_tokens(mask: Array, before: Array) -> Array:
    return np.asarray(before + mask.any(axis=0))


def counted_in_a_byte(mask: Array, before: Array) -> Array:
    return np.asarray(add_counts(mask, before).astype(np.uint8))


def inactive_kept(x: Array, mask: Array) -> Array:
    return x


def active_zeroed(x: Array, mask: Array) -> Array:
    return where_active(x, 1 - mask)


def where_active_for_the_first(x: Array, mask: Array) -> Array:
    return where_active(x, first_token_alone(mask))


def same_place(inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]) -> None:
    """A race: every thread puts its part's rows at the front."""
    neurons = inputs["mask"].shape[1]
    for out in outputs.values():
        out[...] = 0
    for thread in order:
        begin, end = (neurons * n // n_threads for n in (thread, thread + 1))
        rows, count = active_rows(inputs["mask"][:, begin:end])
        outputs["rows"][: count[0]] = rows[: count[0]] + begin
        outputs["count"] += count


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


def not_zeroed(inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]) -> None:
    """Outputs of inactive neurons never stored."""
    active = inputs["mask"] == 1
    outputs["out"][active] = sparse_linear(**inputs)[active]


def over(inputs: Inputs, rows: Array) -> Array:
    """sparse_axpy over these neurons, active or not."""
    listed = {"rows": rows, "count": np.array([len(rows)])}
    return sparse_axpy(**{**inputs, **listed, "slots": some_rows(inputs, inputs["slots"])})


def active_of(inputs: Inputs) -> Array:
    return np.asarray(inputs["rows"][: inputs["count"][0]])


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


def adds_lost(inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]) -> None:
    """A race: threads divide neurons, and each adds to what stood there before any had added."""
    for part in np.array_split(active_of(inputs), n_threads):
        outputs["out"][...] = over(inputs, part)


def adds_as_they_come(
    inputs: Arguments, outputs: Outputs, n_threads: int, order: Sequence[int]
) -> None:
    """Threads divide neurons, and add up their sums in whatever order they come, in float32."""
    parts = np.array_split(active_of(inputs), n_threads)
    outputs["out"][...] = 0
    for thread in order:
        outputs["out"][...] += over(inputs, parts[thread]).astype(np.float32)


def rows_of(op: str, *bugs: Any, formats: Sequence[str | None] = (None,)) -> list[Wrong]:
    return [
        Wrong(op, bug.__name__.replace("_", "-"), computing(bug), kind)
        for kind in formats
        for bug in bugs
    ]


FORMATS_OF_AXPY = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "Q6_K")

BUGS = (
    *rows_of("threshold_mask", strictly_above, of_the_sigmoid, of_magnitudes, first_token_for_all),
    *rows_of("union_mask", first_token_alone, without_the_last_token, of_every_token, counted),
    *rows_of("neuron_split", at_the_other_place, places_ignored, place_of_the_next),
    *rows_of("active_rows", count_off_by_one, stale_behind, descending),
    *rows_of("active_rows", of_the_first_token, last_neuron_missed, once_a_token),
    Wrong("active_rows", "same-place", same_place),
    *rows_of("add_counts", counted_anew, once_for_all_tokens, counted_in_a_byte),
    *rows_of("where_active", inactive_kept, active_zeroed, where_active_for_the_first),
    *rows_of(
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
    *(Wrong("sparse_linear", "not-zeroed", not_zeroed, kind) for kind in FORMATS_OF_SPARSE),
    *rows_of(
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
        formats=FORMATS_OF_AXPY,
    ),
    *(
        Wrong("sparse_axpy", name, race, kind)
        for kind in FORMATS_OF_AXPY
        for name, race in (("adds-lost", adds_lost), ("adds-as-they-come", adds_as_they_come))
    ),
)
