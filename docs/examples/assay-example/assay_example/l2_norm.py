"""L2 normalisation of rows, as of DeltaNet's queries and keys (Yang et al., arXiv 2406.06484)."""

import numpy as np

from reference.bounds import relative
from reference.laws.common import alone, contained
from reference.op import Apply, Arguments, Array, Case, Cost, Law, Op, Shape
from reference.sizes import TOKENS, WIDTHS

SIGNATURE = "x: f32[tokens hidden], eps: f64 -> out: f32[tokens hidden]"
SMALLEST = 1e-6  # smallest eps: squares that float32 flushes to zero are negligible beside it


def l2_norm(x: Array, eps: float) -> Array:
    """out = x / max(sqrt(sum(x^2)), eps), the sum over hidden.

    x [tokens, hidden] -> float64 [tokens, hidden].
    """
    x = x.astype(np.float64)
    length = np.sqrt(np.sum(x * x, axis=-1, keepdims=True))
    out: Array = x / np.maximum(length, eps)
    return out


def make(case: Case) -> Arguments:
    """Some rows are small enough for eps to matter."""
    rng = case.rng()
    eps = float(rng.choice([SMALLEST, 1e-5, 1e-3]))
    x = case.array(rng, case.shape["tokens"], case.shape["hidden"])
    small = rng.random((len(x), 1)) < 0.3
    return {"x": np.where(small, x * np.float32(eps), x), "eps": eps}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A sum of squares has gamma(hidden + 1): one rounding of each square and hidden - 1 of the
    sum, plus a spare one. The square root halves it. The root, eps as float32, and the quotient (or
    a reciprocal and a product) add four roundings. Squares below float32's range are lost, at most
    2^-126 each beside an eps^2 of 2^-40: hidden * 2^-86, which the spare rounding covers.
    """
    return {"out": relative(expected["out"], (inputs["x"].shape[1] + 1) / 2 + 4)}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["hidden"]
    return Cost(8 * elements, 3 * elements)


def has_length_one(apply: Apply, case: Case) -> str:
    """A row far above eps has length one, within its elements' bounds."""
    x = case.rng().standard_normal((4, case.shape["hidden"])).astype(np.float32)
    out = apply({"x": x, "eps": SMALLEST})["out"].astype(np.float64)
    length = np.sqrt(np.sum(out * out, axis=-1))
    limit = float(relative(1.0, (x.shape[1] + 1) / 2 + 4))
    worst = float(np.max(np.abs(length - 1)))
    return f"a row's length is off by {worst:.3g}, bound {limit:.3g}" if worst > limit else ""


OP = Op(
    name="l2_norm",
    reference=l2_norm,
    signature=SIGNATURE,
    axes={"tokens": TOKENS, "hidden": WIDTHS},
    make=make,
    bound=bound,
    cost=cost,
    corners=(
        {"tokens": 0, "hidden": 33},
        {"tokens": 65, "hidden": 33},
        {"tokens": 2, "hidden": 4128},
    ),
    nan="token",
    largest=2.0**55,
    laws=(
        alone(SIGNATURE, make),
        contained(SIGNATURE, make),
        Law("length-one", has_length_one),
    ),
)
