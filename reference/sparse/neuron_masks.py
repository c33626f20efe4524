"""Masks of active neurons in feed-forward networks (PowerInfer, arXiv 2312.12456).

A mask is uint8 [tokens, neurons]: 1 if the neuron is active for the token, else 0.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from reference.laws.common import alone, contained, in_turns
from reference.laws.sparse.neuron_masks import LAWS
from reference.op import Arguments, Array, Case, Cost, Law, Op, Shape, no_complaint
from reference.sizes import TOKENS, WIDTHS
from reference.values import FINITE

SHARES = (0.5, 0.0, 0.95, 0.02, 1.0, 0.1)  # fractions of active neurons, in rotation by seed


def threshold_mask(logits: Array, threshold: float) -> Array:
    """1 where the predictor's logit is at least the threshold; NaN is not.

    logits float32 [tokens, neurons] -> mask.
    """
    return np.asarray(logits.astype(np.float64) >= threshold, np.uint8)


def union_mask(mask: Array) -> Array:
    """A neuron active for any token is active for every token. mask -> mask."""
    return np.broadcast_to(mask.max(axis=0, initial=0), mask.shape)


def neuron_split(mask: Array, places: Array, place: float) -> Array:
    """The active neurons placed at `place` (PowerInfer's gpu_idx: 1 the GPU, 0 the CPU).

    mask, places int32 [neurons] -> mask.
    """
    return np.where(places == place, mask, 0)


def active_rows(mask: Array) -> tuple[Array, Array]:
    """The indices of neurons active for any token, ascending.

    mask -> rows int32 [neurons], zero beyond the first `count`; count int32 [1].
    """
    found = np.flatnonzero(mask.any(axis=0))
    rows = np.zeros(mask.shape[1], np.int32)
    rows[: len(found)] = found
    return rows, np.array([len(found)], np.int32)


def add_counts(mask: Array, before: Array) -> Array:
    """out[i] = before[i] + the number of tokens for which neuron i is active.

    mask, before int64 [neurons] -> int64 [neurons].
    """
    return np.asarray(before + mask.sum(axis=0, dtype=np.int64))


def where_active(x: Array, mask: Array) -> Array:
    """x where the neuron is active, else 0. x [tokens, neurons], mask -> float64, same."""
    return np.where(mask, x.astype(np.float64), 0)


def some_mask(rng: np.random.Generator, tokens: int, neurons: int, active: int) -> Array:
    """A mask in which `active` neurons are active for at least one token."""
    mask = np.zeros((tokens, neurons), np.uint8)
    if tokens:
        chosen = rng.permutation(neurons)[:active]
        mask[:, chosen] = rng.random((tokens, active)) < rng.choice([0.0, 0.7], active)
        mask[rng.integers(0, tokens, active), chosen] = 1
    return mask


def some_slots(rng: np.random.Generator, active: Array, neurons: int, held: int) -> Array:
    """A distinct random row among `held` for each active neuron; the slots of the others, which may
    not be read, are -1, out of range, or valid.

    active int32 [count] -> int32 [neurons].
    """
    slots = rng.choice(np.array([-1, held, 2**31 - 1, 0], np.int32), neurons)
    slots[active] = rng.permutation(held)[: len(active)]
    return slots


def _make_logits(case: Case) -> Arguments:
    """The threshold is a logit or lies between two float32, and many logits are adjacent to it."""
    rng = case.rng()
    logits = case.array(rng, case.shape["tokens"], case.shape["neurons"])
    finite = logits[np.isfinite(logits)]
    middle = float(np.median(finite)) if finite.size else 0.0
    above, below = (middle * (1 + step) for step in (2.0**-26, -(2.0**-26)))
    threshold = (middle, 0.7, 0.3, above, below)[case.seed % 5]
    near = np.nextafter(np.float32(threshold), np.array([-np.inf, threshold, np.inf], np.float32))
    logits = np.where(rng.random(logits.shape) < 0.2, rng.choice(near, logits.shape), logits)
    return {"logits": logits, "threshold": threshold}


def _make_mask(case: Case) -> Arguments:
    rng, (tokens, neurons) = case.rng(), case.shape.values()
    active = int(SHARES[case.seed % len(SHARES)] * neurons)
    return {"mask": some_mask(rng, tokens, neurons, active)}


def _make_split(case: Case) -> Arguments:
    rng, neurons = case.rng(), case.shape["neurons"]
    places = np.asarray(rng.random(neurons) < rng.choice(SHARES), np.int32)
    place = (0.0, 1.0, 0.0, 1.0, 0.5, 1.0, 2.0)[case.seed % 7]
    return {**_make_mask(case), "places": places, "place": place}


def _make_counts(case: Case) -> Arguments:
    before = case.rng().integers(0, 2**40, case.shape["neurons"])
    return {**_make_mask(case), "before": before}


def _make_masked(case: Case) -> Arguments:
    return {**_make_mask(case), "x": case.array(case.rng(), *case.shape.values())}


def exact(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: the outputs are decisions and copies."""
    return {name: np.zeros(np.shape(value)) for name, value in expected.items()}


def complaint(inputs: Arguments) -> str:
    return "mask holds more than 0 and 1" if (inputs["mask"] > 1).any() else ""


def _row(
    reference: Callable[..., Any],
    signature: str,
    make: Callable[[Case], Arguments],
    bytes_each: float,
    *laws: Law,
) -> Op:
    """An op on a mask that moves `bytes_each` bytes for each neuron."""

    def cost(shape: Shape, format: str | None) -> Cost:
        elements = shape["tokens"] * shape["neurons"]
        return Cost(bytes_each * elements, elements)

    return Op(
        name=reference.__name__,
        reference=reference,
        signature=signature,
        axes={"tokens": TOKENS, "neurons": WIDTHS},
        make=make,
        bound=exact,
        cost=cost,
        values=("normal",),
        corners=(
            {"tokens": 0, "neurons": 33},
            {"tokens": 65, "neurons": 63},
            {"tokens": 513, "neurons": 17},  # of any two, one has half of them active
            {"tokens": 513, "neurons": 33},
            {"tokens": 3, "neurons": 352},
            {"tokens": 1, "neurons": 14_335},
            {"tokens": 10, "neurons": 14_336},
            {"tokens": 2, "neurons": 18_000},
        ),
        complaint=complaint,
        laws=(*laws, *LAWS[reference.__name__]),
    )


THRESHOLD = "logits: f32[tokens neurons], threshold: f64 -> mask: u8[tokens neurons]"
UNION = "mask: u8[tokens neurons] -> out: u8[tokens neurons]"
SPLIT = "mask: u8[tokens neurons], places: i32[neurons], place: f64 -> out: u8[tokens neurons]"
ROWS = "mask: u8[tokens neurons] -> rows: i32[neurons], count: i32[1]"
COUNTS = "mask: u8[tokens neurons], before: i64[neurons] -> out: i64[neurons]"
MASKED = "x: f32[tokens neurons], mask: u8[tokens neurons] -> out: f32[tokens neurons]"

OPS = (
    replace(
        _row(
            threshold_mask,
            THRESHOLD,
            _make_logits,
            5,
            alone(THRESHOLD, _make_logits),
            alone(THRESHOLD, _make_logits, "neurons"),
            contained(THRESHOLD, _make_logits, "tokens", "neurons"),
        ),
        values=FINITE,
        complaint=no_complaint,
        nan="element",
        largest=2.0**127,
    ),
    _row(union_mask, UNION, _make_mask, 2, alone(UNION, _make_mask, "neurons")),
    _row(
        neuron_split,
        SPLIT,
        _make_split,
        2,
        alone(SPLIT, _make_split),
        alone(SPLIT, _make_split, "neurons"),
    ),
    _row(active_rows, ROWS, _make_mask, 5),
    _row(
        add_counts,
        COUNTS,
        _make_counts,
        1,
        alone(COUNTS, _make_counts, "neurons"),
        in_turns(COUNTS, _make_counts),
    ),
    replace(
        _row(
            where_active,
            MASKED,
            _make_masked,
            9,
            alone(MASKED, _make_masked),
            alone(MASKED, _make_masked, "neurons"),
            contained(MASKED, _make_masked, "tokens", "neurons"),
        ),
        values=FINITE,
        nan="element",
        largest=2.0**127,
    ),
)
