"""Softmax over the last axis, exp(x - max x) / sum exp(x - max x)."""

import numpy as np

from reference.bounds import EXP, TINY, U, gamma
from reference.laws.common import alone, contained
from reference.laws.softmax import LAWS
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.rms_norm import indices_with_last
from reference.sizes import ELEMENTS

SIGNATURE = "x: f32[tokens width] -> out: f32[tokens width]"


def softmax(x: Array) -> Array:
    """out = exp(x - max x) / sum exp(x - max x).

    x [tokens, width] -> float64 [tokens, width]; -inf becomes 0; a row without a finite value, or
    with +inf, becomes NaN.
    """
    x = x.astype(np.float64)
    powers = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def make(case: Case) -> Arguments:
    """Some rows have an element, often the last, so much larger that missing it would show; with
    infinities the second row is masked as a whole."""
    rng, shape = case.rng(), case.shape
    x = case.array(rng, shape["tokens"], shape["width"])
    masked = np.asarray(rng.random(x.shape) < 0.1)
    masked[:, :1] = False
    x = np.where(masked, np.float32(-np.inf), x)
    rows = np.flatnonzero(rng.random(len(x)) < 0.5)
    x[rows, indices_with_last(rng, shape["width"], len(rows))] += np.float32(100)
    if case.values == "infinite":
        x[1:2] = -np.inf
    return {"x": x}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """exp turns the rounding of x - max into a relative error of U |x - max|; so does the sum.

    If terms have relative errors of at most d, so has the sum; d is the terms' errors weighted by
    their probabilities.
    """
    x = inputs["x"].astype(np.float64)
    depth = x.max(axis=-1, keepdims=True, initial=-np.inf) - x
    depth = np.where(np.isfinite(depth), depth, 0)
    own = EXP + U * depth
    of_sum = (expected["out"] * own).sum(axis=-1, keepdims=True) + gamma(x.shape[1] + 2)
    return {"out": expected["out"] * (own + of_sum) + TINY}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["width"]
    return Cost(8 * elements, 4 * elements)


OP = Op(
    name="softmax",
    reference=softmax,
    signature=SIGNATURE,
    axes=ELEMENTS,
    make=make,
    bound=bound,
    cost=cost,
    corners=(
        {"tokens": 0, "width": 33},
        {"tokens": 65, "width": 33},
        {"tokens": 513, "width": 17},
        {"tokens": 3, "width": 4100},
        {"tokens": 2, "width": 32_000},
        {"tokens": 2, "width": 128_256},
        {"tokens": 1, "width": 256_000},
    ),
    nan="token",
    largest=2.0**127,
    laws=(alone(SIGNATURE, make), contained(SIGNATURE, make), *LAWS),
)
