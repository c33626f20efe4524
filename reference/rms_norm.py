"""Root-mean-square layer normalisation (Zhang and Sennrich, arXiv 1910.07467): x / RMS(x) g."""

import numpy as np

from reference.bounds import TINY, relative
from reference.laws.common import alone, contained, scales
from reference.laws.rms_norm import LAWS
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.sizes import TOKENS, WIDTHS

SIGNATURE = "x: f32[tokens hidden], weight: f32[hidden], eps: f64 -> out: f32[tokens hidden]"


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """out = x / sqrt(mean(x^2) + eps) * weight, the mean over hidden.

    x [tokens, hidden], weight [hidden] -> float64 [tokens, hidden].
    """
    x = x.astype(np.float64)
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    out: Array = x / np.sqrt(mean_square + eps) * weight
    return out


def make(case: Case) -> Arguments:
    """Without eps the squares of a row must not underflow to zero."""
    rng = case.rng()
    eps = max(some_eps(case, rng), 1e-12 if case.values in ("zeros", "subnormal") else 0.0)
    x = some_rows(case, rng, eps)
    return {"x": x, "weight": case.array(rng, x.shape[1]), "eps": eps}


def some_eps(case: Case, rng: np.random.Generator) -> float:
    """An eps that models have, an extreme, or a random one; another for each seed."""
    found = (1e-5, 0.0, 1e-12, 1e-6, 4e-7, 1e-3, 10 ** rng.uniform(-12, 0))
    return float(found[case.seed % len(found)])


def some_rows(case: Case, rng: np.random.Generator, eps: float) -> Array:
    """float32 [tokens, hidden]: some rows are so small that eps matters, and in some one element,
    often the last, dominates the sum of squares.

    For huge values all of the first row is as large as a row of its length may hold: `largest` is
    for rows of 2^16.
    """
    tokens, hidden = case.shape["tokens"], case.shape["hidden"]
    x = case.array(rng, tokens, hidden)
    small = rng.random((tokens, 1)) < 0.5
    x = np.where(small, x * np.float32(np.sqrt(eps) or 1), x)
    if case.values == "huge":
        x[:1] = np.copysign(case.largest * np.sqrt(2**16 / hidden), x[:1])
    else:
        rows = np.flatnonzero(rng.random(tokens) < 0.5)
        x[rows, indices_with_last(rng, hidden, len(rows))] *= np.float32(100)
    return x


def indices_with_last(rng: np.random.Generator, size: int, count: int) -> Array:
    """Random indices, often with the last one, where kernels' tails have bugs."""
    return np.where(rng.random(count) < 0.5, size - 1, rng.integers(size, size=count))


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The sum of squares has gamma(hidden + 1), halved by the root; six more roundings follow.

    What underflows, of the squares and of their sums, may be flushed: at most 2 TINY of the mean.
    Losing a share of the mean up to a half changes 1 / sqrt by no more than that share; beyond it
    any number passes. An element times the row's factor may underflow, before the weight multiplies
    it.
    """
    x, out = inputs["x"].astype(np.float64), expected["out"]
    square = (x**2).mean(axis=-1, keepdims=True) + inputs["eps"]
    lost = np.where(square >= 4 * TINY, np.abs(out) * (2 * TINY / np.maximum(square, TINY)), np.inf)
    growth = relative(out, (x.shape[1] + 1) / 2 + 6)
    return {"out": growth + lost + TINY * np.abs(inputs["weight"])}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["hidden"]
    return Cost(4 * (2 * elements + shape["hidden"]), 4 * elements)


OP = Op(
    name="rms_norm",
    reference=rms_norm,
    signature=SIGNATURE,
    axes={"tokens": TOKENS, "hidden": WIDTHS},
    make=make,
    bound=bound,
    cost=cost,
    corners=(
        {"tokens": 0, "hidden": 33},
        {"tokens": 65, "hidden": 33},
        {"tokens": 513, "hidden": 17},
        {"tokens": 2, "hidden": 2048},
        {"tokens": 2, "hidden": 4128},  # longer than a CUDA thread block's tile
        {"tokens": 2, "hidden": 8193},
        {"tokens": 3, "hidden": 14_335},
        {"tokens": 10, "hidden": 14_336},
    ),
    nan="token",
    largest=2.0**55,  # 2^16 squares are summed in float32
    laws=(
        alone(SIGNATURE, make),
        contained(SIGNATURE, make),
        scales(make, ["x"], [-1]),
        scales(make, ["weight"], [-1, 0, 2, 0.5]),
        *LAWS,
    ),
)
