"""Root-mean-square layer normalisation (Zhang and Sennrich, arXiv 1910.07467)."""

import numpy as np

from reference.bounds import relative
from reference.op import Arguments, Array, Case, Cost, Op, Shape


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """out = x / sqrt(mean(x^2) + eps) * weight, the mean over hidden.

    x [tokens, hidden], weight [hidden] -> float64 [tokens, hidden].
    """
    x = x.astype(np.float64)
    mean_square = np.mean(x * x, axis=-1, keepdims=True)
    out: Array = x / np.sqrt(mean_square + eps) * weight
    return out


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    return {
        "x": case.array(rng, shape["tokens"], shape["hidden"]),
        "weight": case.array(rng, shape["hidden"]),
        "eps": float(rng.choice([1e-5, 1e-6, 1e-3])),
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The sum of squares has gamma(hidden + 1), halved by the root; six more roundings follow."""
    return {"out": relative(expected["out"], (inputs["x"].shape[1] + 1) / 2 + 6)}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["hidden"]
    return Cost(4 * (2 * elements + shape["hidden"]), 4 * elements)


OP = Op(
    name="rms_norm",
    reference=rms_norm,
    signature="x: f32[tokens hidden], weight: f32[hidden], eps: f64 -> out: f32[tokens hidden]",
    axes={"tokens": (0, 1, 2, 7), "hidden": (1, 2, 31, 33, 127, 129, 2048)},
    make=make,
    bound=bound,
    cost=cost,
    # the second is longer than what a block of threads of a GPU holds at once
    corners=({"tokens": 2, "hidden": 2048}, {"tokens": 2, "hidden": 4128}),
    nan="token",
)
