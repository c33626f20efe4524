"""Mixture of experts (Shazeer et al., arXiv 1701.06538): y = sum over the top-k experts e of g_e
E_e(x). Routing, the normalised gates g, sorting by expert, and the weighted sum.

Every token goes to `used` of the `experts`. A token and one of its experts are a pair; pairs are
sorted by expert, so that an expert's weights are read once for all its tokens (linear_experts.py).
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from reference.activations import sigmoid, sigmoid_error
from reference.bounds import TINY, U, gamma
from reference.laws.common import alone, contained, scales
from reference.laws.experts import LAWS, SORTED, SUMS
from reference.op import Arguments, Array, Case, Cost, Law, Op, Shape, out_of_range, same_shape
from reference.sizes import CORNERS_OF_ELEMENTS, ELEMENTS, TOKENS

LEAST = 2.0**-14  # lower limit of the sum that gates are divided by
CHOOSE = (
    "scores: f32[tokens experts], bias: f32[experts], used: i64, groups: i64, kept: i64"
    " -> chosen: i32[tokens used]"
)
PICK = "scores: f32[tokens experts], chosen: i32[tokens used] -> out: f32[tokens used]"
SHARES = "weights: f32[tokens used] -> out: f32[tokens used]"
GATE = "x: f32[tokens width], gate: f32[tokens 1] -> out: f32[tokens width]"
SORT = (
    "chosen: i32[tokens used], experts: i64"
    " -> rows: i32[tokens*used], expert: i32[tokens*used], places: i32[tokens used],"
    " ends: i32[experts], needed: i32[experts], count: i32[1]"
)
SUM = (
    "y: f32[tokens*used hidden], places: i32[tokens used], weights: f32[tokens used]"
    " -> out: f32[tokens hidden]"
)


def choose_experts(scores: Array, bias: Array, used: int, groups: int, kept: int) -> Array:
    """The `used` experts with the largest score + bias, in ascending order.

    Experts are divided into `groups` of equal size, of which only the `kept` best are considered: a
    group's score is the sum of its two best (DeepSeek V3, arXiv 2412.19437). Both sums are rounded
    to float32, and ties go to the lower index, so that the choice is unique.
    scores float32 [tokens, experts], bias float32 [experts] -> int32 [tokens, used].
    """
    ranked = np.asarray(scores + bias, np.float32)
    if kept < groups:
        members = ranked.reshape(len(ranked), groups, -1)
        best = -np.sort(-members, axis=-1)[..., :2]
        of_group = best.sum(axis=-1, dtype=np.float32)
        order = np.argsort(-of_group, axis=-1, kind="stable")
        dropped = np.ones(of_group.shape, bool)
        np.put_along_axis(dropped, order[:, :kept], False, axis=-1)
        ranked = np.where(dropped[..., None], -np.inf, members).reshape(ranked.shape)
    order = np.argsort(-ranked, axis=-1, kind="stable")
    return np.sort(order[:, :used], axis=-1).astype(np.int32)


def gather_scores(scores: Array, chosen: Array) -> Array:
    """out[t, k] = scores[t, chosen[t, k]].

    scores [tokens, experts], chosen int32 [tokens, used] -> float64 [tokens, used].
    """
    return np.take_along_axis(scores.astype(np.float64), chosen, axis=-1)


def normalise_weights(weights: Array) -> Array:
    """Normalise the gates of each token: weights / max(sum of weights, 2^-14), for weights >= 0.

    weights [tokens, used] -> float64, same.
    """
    weights = weights.astype(np.float64)
    return np.asarray(weights / np.maximum(weights.sum(axis=-1, keepdims=True), LEAST))


def sort_by_expert(chosen: Array, experts: int) -> tuple[Array, ...]:
    """All pairs, sorted by expert and then by token.

    chosen int32 [tokens, used], ascending for each token -> rows int32 [tokens*used], the token of
    each sorted pair; expert int32, same, its expert; places int32 [tokens, used], each pair's
    sorted index; ends int32 [experts], the end of each expert's pairs; needed int32 [experts], the
    experts that have pairs, ascending, zero beyond the first `count`; count int32 [1].
    """
    order = np.argsort(chosen.ravel(), kind="stable")
    places = np.empty(order.shape, np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    counts = np.bincount(chosen.ravel(), minlength=experts)
    ends = np.cumsum(counts).astype(np.int32)
    rows = (order // chosen.shape[1]).astype(np.int32)
    found = np.flatnonzero(counts)
    needed = np.zeros(experts, np.int32)
    needed[: len(found)] = found
    count = np.array([len(found)], np.int32)
    return rows, chosen.ravel()[order], places.reshape(chosen.shape), ends, needed, count


def sum_experts(y: Array, places: Array, weights: Array) -> Array:
    """out[t] = sum over k of weights[t, k] * y[places[t, k]].

    y [tokens*used, hidden], the experts' outputs for the sorted pairs; places int32 [tokens, used];
    weights [tokens, used] -> float64 [tokens, hidden].
    """
    out = np.zeros((len(places), y.shape[1]))
    for k in range(places.shape[1]):
        out += weights[:, k : k + 1].astype(np.float64) * y[places[:, k]]
    return out


def sigmoid_gate(x: Array, gate: Array) -> Array:
    """out[t] = sigmoid(gate[t]) * x[t]: the gate of a shared expert (Qwen 1.5).

    x [tokens, width], gate [tokens, 1] -> float64 [tokens, width].
    """
    return x.astype(np.float64) * sigmoid(gate.astype(np.float64))


def some_choice(rng: np.random.Generator, shape: Shape) -> Array:
    """`used` random experts for each token, in ascending order; some experts are popular."""
    liked = rng.random(shape["experts"]) * rng.choice([0.1, 1.0])
    drawn = rng.random((shape["tokens"], shape["experts"])) + liked
    return np.sort(np.argsort(drawn, axis=-1)[:, : shape["used"]], axis=-1).astype(np.int32)


def make_scores(case: Case) -> Arguments:
    """Probabilities or any values, with many ties. Groups divide the experts, and the kept ones
    hold at least `used` experts."""
    rng, shape = case.rng(), case.shape
    experts, used = shape["experts"], shape["used"]
    scores = case.array(rng, shape["tokens"], experts)
    twins = rng.random(scores.shape) < 0.1
    scores[twins] = np.roll(scores, 1, axis=-1)[twins]
    bias = case.array(rng, experts) if case.seed % 2 else np.zeros(experts, np.float32)
    ways = [n for n in range(1, experts + 1) if experts % n == 0 and experts // n > 1] or [1]
    groups = ways[case.seed % len(ways)] if case.seed % 4 else 1
    least = -(-used // (experts // groups))
    kept = int(rng.integers(least, groups + 1))
    return {"scores": scores, "bias": bias, "used": used, "groups": groups, "kept": kept}


def make_pick(case: Case) -> Arguments:
    rng = case.rng()
    scores = case.array(rng, case.shape["tokens"], case.shape["experts"])
    return {"scores": scores, "chosen": some_choice(rng, case.shape)}


def make_shares(case: Case) -> Arguments:
    """Gates as softmax or sigmoid give them; some tokens' are all nearly zero."""
    rng, shape = case.rng(), case.shape
    weights = np.abs(case.array(rng, shape["tokens"], shape["used"]))
    small = rng.random((shape["tokens"], 1)) < 0.2
    return {"weights": np.where(small, weights * np.float32(2.0**-17), weights)}


def make_sort(case: Case) -> Arguments:
    return {"chosen": some_choice(case.rng(), case.shape), "experts": case.shape["experts"]}


def make_sum(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    tokens, used = shape["tokens"], shape["used"]
    places = rng.permutation(tokens * used).astype(np.int32).reshape(tokens, used)
    y = case.array(rng, tokens * used, shape["hidden"])
    return {"y": y, "places": places, "weights": case.array(rng, tokens, used)}


def make_gate(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    x = case.array(rng, shape["tokens"], shape["width"])
    return {"x": x, "gate": case.array(rng, shape["tokens"], 1)}


def exact(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: the outputs are integers or copies."""
    return {name: np.zeros(np.shape(value)) for name, value in expected.items()}


def bound_of_shares(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A sum of terms of the same sign, in any order, and a quotient."""
    used = inputs["weights"].shape[1]
    return {"out": gamma(used + 1) * np.abs(expected["out"]) + TINY}


def bound_of_sum(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A dot product of length `used`, as in linear."""
    used = inputs["places"].shape[1]
    size = sum_experts(np.abs(inputs["y"]), inputs["places"], np.abs(inputs["weights"]))
    return {"out": gamma(used + 1) * size + 2 * TINY * used}


def bound_of_gate(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The sigmoid's own error, and a product's rounding."""
    error = sigmoid_error(inputs["gate"].astype(np.float64), 1) + 2 * U
    size = np.abs(inputs["x"].astype(np.float64))
    return {"out": np.abs(expected["out"]) * error + TINY * (1 + size)}


def out_of_choice(inputs: Arguments) -> str:
    experts = inputs["scores"].shape[1] if "scores" in inputs else inputs["experts"]
    return out_of_range("chosen", inputs["chosen"], experts)


def out_of_places(inputs: Arguments) -> str:
    return out_of_range("places", inputs["places"], len(inputs["y"]))


def unfit_groups(inputs: Arguments) -> str:
    """An error in the numbers of experts and groups; "" if there is none."""
    experts, used = inputs["scores"].shape[1], inputs["used"]
    groups, kept = inputs["groups"], inputs["kept"]
    if groups < 1 or experts % groups or not 1 <= kept <= groups:
        return f"{groups} groups, of which {kept} are kept, do not divide {experts} experts"
    held = kept * (experts // groups)
    return "" if used <= held else f"{used} experts cannot be chosen among {held}"


def fit(shape: Shape, format: str | None) -> Shape:
    """At least one expert, and used <= experts."""
    experts = max(1, shape["experts"])
    return {**shape, "experts": experts, "used": min(max(1, shape["used"]), experts)}


def _cost(*axes: str, times: float = 4) -> Callable[[Shape, str | None], Cost]:
    """The cost with `times` bytes for each element of these axes."""

    def cost(shape: Shape, format: str | None) -> Cost:
        elements = float(np.prod([shape[axis] for axis in axes]))
        return Cost(times * elements, elements)

    return cost


EXPERTS, USED = (1, 2, 3, 8, 15, 16, 17, 33, 60, 64), (1, 2, 3, 4, 8)
OF_MODELS = (
    {"tokens": 0, "experts": 8, "used": 2},
    {"tokens": 1, "experts": 1, "used": 1},
    {"tokens": 65, "experts": 8, "used": 8},
    {"tokens": 3, "experts": 512, "used": 10},
    {"tokens": 513, "experts": 32, "used": 4},
    {"tokens": 7, "experts": 256, "used": 8},
    {"tokens": 9, "experts": 128, "used": 8},
)


def _row(
    reference: Callable[..., Any],
    signature: str,
    make: Callable[[Case], Arguments],
    *laws: Law,
    **rest: Any,
) -> Op:
    fields: dict[str, Any] = {
        "axes": {"tokens": TOKENS, "experts": EXPERTS, "used": USED},
        "fit": fit,
        "corners": OF_MODELS,
        "bound": exact,
        "cost": _cost("tokens", "experts"),
    }
    return Op(
        name=reference.__name__,
        reference=reference,
        signature=signature,
        make=make,
        laws=laws,
        **fields | rest,
    )


OPS = (
    _row(
        choose_experts,
        CHOOSE,
        make_scores,
        alone(CHOOSE, make_scores),
        *LAWS,
        complaint=unfit_groups,
        largest=2.0**125,
    ),
    _row(
        gather_scores,
        PICK,
        make_pick,
        alone(PICK, make_pick),
        contained(PICK, make_pick),
        complaint=out_of_choice,
        cost=_cost("tokens", "used", times=12),
        nan="token",
    ),
    _row(
        normalise_weights,
        SHARES,
        make_shares,
        alone(SHARES, make_shares),
        contained(SHARES, make_shares),
        SUMS,
        axes={"tokens": TOKENS, "used": USED},
        fit=same_shape,
        corners=({"tokens": 0, "used": 2}, {"tokens": 513, "used": 4}, {"tokens": 9, "used": 22}),
        bound=bound_of_shares,
        cost=_cost("tokens", "used", times=8),
        nan="token",
        largest=2.0**120,
    ),
    _row(
        sort_by_expert,
        SORT,
        make_sort,
        SORTED,
        complaint=out_of_choice,
        cost=_cost("tokens", "used", times=16),
    ),
    _row(
        sum_experts,
        SUM,
        make_sum,
        contained(SUM, make_sum),
        axes={"tokens": TOKENS, "used": USED, "hidden": (31, 33, 127, 129, 256)},
        fit=lambda shape, format: {**shape, "used": max(1, shape["used"])},
        corners=(
            {"tokens": 0, "used": 2, "hidden": 33},
            {"tokens": 1, "used": 1, "hidden": 1},
            {"tokens": 9, "used": 8, "hidden": 4099},
            {"tokens": 513, "used": 4, "hidden": 17},
            {"tokens": 3, "used": 22, "hidden": 64},
        ),
        complaint=out_of_places,
        bound=bound_of_sum,
        cost=lambda shape, format: Cost(
            4 * shape["tokens"] * shape["hidden"] * (shape["used"] + 1),
            2 * shape["tokens"] * shape["used"] * shape["hidden"],
        ),
        nan="token",
        largest=2.0**60,
    ),
    _row(
        sigmoid_gate,
        GATE,
        make_gate,
        alone(GATE, make_gate),
        contained(GATE, make_gate),
        scales(make_gate, ["x"], [-1, 0, 2, 0.5]),
        axes=ELEMENTS,
        fit=same_shape,
        corners=CORNERS_OF_ELEMENTS,
        bound=bound_of_gate,
        cost=_cost("tokens", "width", times=8),
        nan="token",
        largest=2.0**127,
    ),
)
