"""Planted bugs of neuron_masks."""

from collections.abc import Mapping

import numpy as np

from conformance.bugs.bug import changed, in_python, sharing
from reference.activations import sigmoid
from reference.op import Arguments, Array
from reference.sparse.neuron_masks import (
    active_rows,
    add_counts,
    neuron_split,
    threshold_mask,
    where_active,
)

Outputs = Mapping[str, Array]
Found = tuple[Array, Array]


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
)
