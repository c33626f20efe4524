"""Squares added up by column over all tokens: what an importance matrix is made of."""

import numpy as np

from reference.bounds import U64, gamma
from reference.laws.add_squares import signs_do_not_count
from reference.laws.common import contained, in_turns
from reference.op import Arguments, Array, Case, Cost, Op, Shape


def add_squares(x: Array, before: Array) -> Array:
    """out[j] = before[j] + sum over tokens of x[t, j]^2.

    x float32 [tokens, hidden], before float64 [hidden] -> float64 [hidden].
    """
    return np.asarray(before + (x.astype(np.float64) ** 2).sum(axis=0))


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    before = case.array(rng, shape["hidden"]).astype(np.float64) ** 2
    return {"x": case.array(rng, shape["tokens"], shape["hidden"]), "before": before}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Squares of float32 are exact in float64; the terms, none negative, are added in any order."""
    terms = len(inputs["x"]) + 1
    return {"out": gamma(terms, U64) * expected["out"]}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["hidden"]
    return Cost(4 * elements + 16 * shape["hidden"], 2 * elements)


SIGNATURE = "x: f32[tokens hidden], before: f64[hidden] -> out: f64[hidden]"


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
    largest=2.0**127,  # float64 holds the square of whatever float32 does
    laws=(
        in_turns(SIGNATURE, make),
        contained(SIGNATURE, make, "hidden"),
        signs_do_not_count(make),
    ),
)
