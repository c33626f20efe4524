"""Planted bugs of mixtures of experts."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.activations import sigmoid
from reference.add_squares import add_squares_by_expert
from reference.experts import (
    choose_experts,
    open_gate,
    scores_of_chosen,
    shares_of_sum,
    sort_by_expert,
    sum_experts,
)
from reference.op import Array


def best_first(scores: Array, bias: Array, used: int, groups: int, kept: int) -> Array:
    """In the order of their scores, not of their numbers."""
    chosen = choose_experts(scores, bias, used, groups, kept)
    ranked = np.take_along_axis(scores + bias, chosen, axis=-1)
    return np.take_along_axis(chosen, np.argsort(-ranked, axis=-1, kind="stable"), axis=-1)


def of_equals_the_last(scores: Array, bias: Array, used: int, groups: int, kept: int) -> Array:
    last = scores.shape[1] - 1
    turned = np.ascontiguousarray(scores[:, ::-1]), np.ascontiguousarray(bias[::-1])
    return np.sort(last - choose_experts(*turned, used, groups, kept), axis=-1)


def groups_by_their_best(scores: Array, bias: Array, used: int, groups: int, kept: int) -> Array:
    """A group counts by its best expert alone."""
    ranked = np.asarray(scores + bias, np.float32).reshape(len(scores), groups, -1)
    best = np.argsort(-ranked.max(axis=-1), axis=-1, kind="stable")[:, :kept]
    left = np.full(ranked.shape, -np.inf, np.float32)
    np.put_along_axis(left, best[..., None], np.take_along_axis(ranked, best[..., None], 1), 1)
    order = np.argsort(-left.reshape(scores.shape), axis=-1, kind="stable")
    return np.sort(order[:, :used], axis=-1)


def without_the_least(weights: Array) -> Array:
    weights = weights.astype(np.float64)
    return weights / weights.sum(axis=-1, keepdims=True)


def sorted_by(change: Any) -> Any:
    """sort_by_expert, but for what is changed of its outputs."""

    def wrong(chosen: Array, experts: int) -> tuple[Array, ...]:
        names = "rows", "expert", "places", "ends", "needed", "count"
        found = dict(zip(names, sort_by_expert(chosen, experts), strict=True))
        return tuple({**found, **change(found)}.values())

    return wrong


BUGS = (
    *in_python(
        "choose_experts",
        best_first,
        of_equals_the_last,
        groups_by_their_best,
        without_bias=changed(choose_experts, bias=np.zeros_like),
        all_groups=changed(choose_experts, groups=1, kept=1),
        the_first_experts=lambda scores, bias, used, groups, kept: np.broadcast_to(
            np.arange(used), (len(scores), used)
        ),
    ),
    *in_python(
        "scores_of_chosen",
        of_the_first_token=changed(
            scores_of_chosen, scores=lambda scores: np.broadcast_to(scores[:1], scores.shape)
        ),
        of_the_first_experts=lambda scores, chosen: scores[:, : chosen.shape[1]],
    ),
    *in_python(
        "shares_of_sum",
        without_the_least,
        least_is_added=lambda weights: (
            weights / (weights.astype(np.float64).sum(axis=-1, keepdims=True) + 2.0**-14)
        ),
        as_they_are=lambda weights: weights,
        of_all_tokens=lambda weights: shares_of_sum(weights.reshape(1, -1)).reshape(weights.shape),
    ),
    *in_python(
        "sort_by_expert",
        begins_not_ends=sorted_by(lambda found: {"ends": np.roll(found["ends"], 1)}),
        pairs_not_tokens=sorted_by(lambda found: {"rows": np.arange(len(found["rows"]))}),
        places_of_pairs=sorted_by(
            lambda found: {"places": np.arange(found["places"].size).reshape(found["places"].shape)}
        ),
        experts_as_chosen=sorted_by(lambda found: {"expert": np.sort(found["expert"])[::-1]}),
        one_needed_less=sorted_by(lambda found: {"count": np.maximum(found["count"] - 1, 0)}),
        all_are_needed=sorted_by(lambda found: {"needed": np.arange(len(found["needed"]))}),
    ),
    *in_python(
        "sum_experts",
        unweighted=changed(sum_experts, weights=np.ones_like),
        as_they_lie=changed(
            sum_experts, places=lambda places: np.arange(places.size).reshape(places.shape)
        ),
        without_the_last=lambda y, places, weights: sum_experts(y, places[:, :-1], weights[:, :-1]),
        the_mean=lambda y, places, weights: (
            sum_experts(y, places, weights) / max(1, places.shape[1])
        ),
    ),
    *in_python(
        "add_squares_by_expert",
        ends_are_begins=changed(
            add_squares_by_expert, ends=lambda ends: np.append(ends[1:], ends[-1:])
        ),
        what_is_below_zero_left_out=changed(
            add_squares_by_expert, x=lambda x: np.maximum(x, np.float32(0))
        ),
        nothing_was_met=changed(add_squares_by_expert, met=np.zeros_like),
        nothing_was_there=changed(add_squares_by_expert, before=np.zeros_like),
        in_float=lambda x, ends, before, met: (
            add_squares_by_expert(x, ends, before, met)[0].astype(np.float32),
            add_squares_by_expert(x, ends, before, met)[1],
        ),
    ),
    *in_python(
        "open_gate",
        gate_as_it_is=lambda x, gate: x.astype(np.float64) * gate,
        gate_turned=changed(open_gate, gate=np.negative),
        gate_of_the_first=lambda x, gate: x * sigmoid(gate[:1].astype(np.float64)),
        input_dropped=lambda x, gate: np.broadcast_to(sigmoid(gate.astype(np.float64)), x.shape),
    ),
)
