"""Sums of squared activations by column, over all tokens or each expert's: the importance matrix
(imatrix) of llama.cpp, out[j] = before[j] + sum_t x[t, j]^2."""

import numpy as np

from reference.bounds import U64, gamma
from reference.laws.add_squares import experts_in_turns, others_do_not_count, signs_do_not_count
from reference.laws.common import contained, in_turns
from reference.linear_experts import runs, some_counts, unfit_ends
from reference.op import Arguments, Array, Case, Cost, Op, Shape


def add_squares(x: Array, before: Array) -> Array:
    """out[j] = before[j] + sum over tokens of x[t, j]^2.

    x float32 [tokens, hidden], before float64 [hidden] -> float64 [hidden].
    """
    return np.asarray(before + (x.astype(np.float64) ** 2).sum(axis=0))


def add_squares_by_expert(x: Array, ends: Array, before: Array, met: Array) -> tuple[Array, Array]:
    """out[e, j] = before[e, j] + sum of x[t, j]^2 over the tokens t of expert e, and counts[e] =
    met[e] + their number. Expert e has tokens ends[e - 1] to ends[e], as in linear_experts.

    x float32 [tokens, hidden], ends int32 [experts], before float64 [experts, hidden], met int64
    [experts] -> float64 [experts, hidden], int64 [experts].
    """
    out, counts = before.copy(), met.copy()
    for expert, begin, end in runs(ends):
        out[expert] = add_squares(x[begin:end], before[expert])
        counts[expert] += end - begin
    return out, counts


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    before = case.array(rng, shape["hidden"]).astype(np.float64) ** 2
    return {"x": case.array(rng, shape["tokens"], shape["hidden"]), "before": before}


def make_by_expert(case: Case) -> Arguments:
    """Some experts have no tokens."""
    rng, shape = case.rng(), case.shape
    experts, hidden = shape["experts"], shape["hidden"]
    counts = some_counts(case, rng, shape["tokens"], experts)
    return {
        "x": case.array(rng, shape["tokens"], hidden),
        "ends": np.cumsum(counts).astype(np.int32),
        "before": case.array(rng, experts, hidden).astype(np.float64) ** 2,
        "met": rng.integers(0, 2**40, experts),
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Squares of float32 are exact in float64; terms are not negative and added in any order."""
    terms = len(inputs["x"]) + 1
    return {"out": gamma(terms, U64) * expected["out"]}


def bound_by_expert(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Sums as in `bound`; counts are exact."""
    return bound(inputs, expected) | {"counts": np.zeros(inputs["met"].shape)}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["hidden"]
    return Cost(4 * elements + 16 * shape["hidden"], 2 * elements)


def cost_by_expert(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["hidden"]
    return Cost(4 * elements + 16 * shape["experts"] * (shape["hidden"] + 1), 2 * elements)


SIGNATURE = "x: f32[tokens hidden], before: f64[hidden] -> out: f64[hidden]"
BY_EXPERT = (
    "x: f32[tokens hidden], ends: i32[experts], before: f64[experts hidden], met: i64[experts]"
    " -> out: f64[experts hidden], counts: i64[experts]"
)


OP = Op(
    name="add_squares",
    reference=add_squares,
    signature=SIGNATURE,
    axes={"tokens": (1, 2, 7, 9, 33), "hidden": (1, 2, 31, 33, 127, 256, 1000)},
    make=make,
    bound=bound,
    cost=cost,
    corners=(
        {"tokens": 0, "hidden": 33},
        {"tokens": 9, "hidden": 14_336},
        {"tokens": 65, "hidden": 11_009},
        {"tokens": 513, "hidden": 257},
        {"tokens": 2, "hidden": 65_600},
    ),
    nan="element",
    largest=2.0**127,  # float64 holds the square of every float32
    laws=(
        in_turns(SIGNATURE, make),
        contained(SIGNATURE, make, "hidden"),
        signs_do_not_count(make),
    ),
)


OP_BY_EXPERT = Op(
    name="add_squares_by_expert",
    reference=add_squares_by_expert,
    signature=BY_EXPERT,
    axes={
        "tokens": (1, 2, 7, 9, 33),
        "experts": (1, 2, 3, 8, 17),
        "hidden": (1, 2, 31, 33, 127, 256),
    },
    make=make_by_expert,
    bound=bound_by_expert,
    cost=cost_by_expert,
    fit=lambda shape, format: {**shape, "experts": max(1, shape["experts"])},
    corners=(
        {"tokens": 0, "experts": 3, "hidden": 33},
        {"tokens": 9, "experts": 4, "hidden": 14_336},
        {"tokens": 513, "experts": 64, "hidden": 257},
        {"tokens": 7, "experts": 520, "hidden": 129},
        {"tokens": 2, "experts": 2, "hidden": 65_600},
    ),
    complaint=unfit_ends,
    nan="element",
    largest=2.0**127,
    laws=(
        experts_in_turns(make_by_expert),
        others_do_not_count(make_by_expert),
        signs_do_not_count(make_by_expert),
    ),
)
