"""LayerNorm (Ba, Kiros and Hinton, arXiv 1607.06450): (x - E[x]) / sqrt(Var[x] + eps) g + b."""

import numpy as np

from reference.bounds import TINY, U, gamma, relative
from reference.laws.common import alone, contained, scales
from reference.laws.layer_norm import LAWS
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.rms_norm import some_eps, some_rows
from reference.sizes import TOKENS, WIDTHS

SIGNATURE = (
    "x: f32[tokens hidden], weight: f32[hidden], bias: f32[hidden], eps: f64"
    " -> out: f32[tokens hidden]"
)


def layer_norm(x: Array, weight: Array, bias: Array, eps: float) -> Array:
    """out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias, mean and variance over hidden.

    The variance is the mean of (x - mean(x))^2. x [tokens, hidden], weight and bias [hidden]
    -> float64 [tokens, hidden].
    """
    x = x.astype(np.float64)
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    out: Array = centred / np.sqrt(variance + eps) * weight + bias
    return out


def make(case: Case) -> Arguments:
    """About every other row is far from zero, where E[x^2] - E[x]^2 as the variance cancels. A row
    of equal elements needs an eps."""
    rng, shape = case.rng(), case.shape
    eps = max(some_eps(case, rng), 1e-12)
    x = some_rows(case, rng, eps)
    far = rng.random((shape["tokens"], 1)) < 0.5
    with np.errstate(invalid="ignore"):  # infinities of opposite signs
        x = np.where(far, x + np.float32(1000) * x[:, :1], x)
    return {
        "x": x,
        "weight": case.array(rng, shape["hidden"]),
        "bias": case.array(rng, shape["hidden"]),
        "eps": eps,
    }


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """`shift` bounds the error of the mean, taken twice: the mean is subtracted, and that of the
    rest again. Each centred element has it too, plus its own rounding.

    A shift of the mean adds its square to the variance (the centred elements sum to zero) and
    subtracts nothing. The root halves the variance's own gamma(hidden + 4); the division, the root
    and two products follow, and the sum with the bias.
    """
    x, weight = inputs["x"].astype(np.float64), np.abs(inputs["weight"].astype(np.float64))
    n = x.shape[1]
    mean = np.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    first = gamma(n + 1) * np.mean(np.abs(x), axis=-1, keepdims=True)
    spread = np.mean(np.abs(centred), axis=-1, keepdims=True)
    shift = gamma(n + 2) * (spread + first) + gamma(2) * (np.abs(mean) + first)
    variance = np.mean(centred * centred, axis=-1, keepdims=True) + inputs["eps"]
    widened = 1 + shift * shift / variance
    off = shift * (1 + U) + U * np.abs(centred)
    factor = gamma((n + 4) / 2 + 4) * widened + (widened - 1) / 2
    scaled = (off * (1 + factor) + np.abs(centred) * factor + TINY) / np.sqrt(variance) + TINY
    return {"out": scaled * weight + relative(expected["out"], 1)}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["hidden"]
    return Cost(4 * (2 * elements + 2 * shape["hidden"]), 7 * elements)


OP = Op(
    name="layer_norm",
    reference=layer_norm,
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
        {"tokens": 2, "hidden": 8193},
        {"tokens": 3, "hidden": 14_335},
        {"tokens": 10, "hidden": 14_336},
    ),
    nan="token",
    # 2^16 squares of elements up to twice as far from their mean are summed in float32
    largest=2.0**54,
    laws=(
        alone(SIGNATURE, make),
        contained(SIGNATURE, make),
        scales(make, ["x", "bias"], [-1]),
        *LAWS,
    ),
)
