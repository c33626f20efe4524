"""The linear layer W8A8: y = sum over groups of s_x s_w sum (q_x - z_x) (q_w - z_w), int8 q and z.

With one group it is LLM.int8()'s and SmoothQuant's (arXiv 2208.07339, 2211.10438): a scale for each
token and each channel. Scales of the weight are [groups, out], as in GPTQ's and AWQ's files.
"""

import numpy as np

from reference.bounds import FACTOR, TINY, gamma
from reference.laws.common import alone, contained, scales
from reference.laws.schemes import W8A8, cuts
from reference.linear import some_tokens
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.schemes.integers import no_zero_point, quantise_asymmetric


def linear_w8a8(
    x: Array, x_scale: Array, x_zero: Array, weight: Array, weight_scale: Array, weight_zero: Array
) -> Array:
    """out = sum over groups of x_scale weight_scale sum (x - x_zero) (weight - weight_zero).

    x int8 [tokens, groups * size], x_scale float32 [tokens, groups], x_zero int32 [tokens, groups],
    weight int8 [out, groups * size], weight_scale float32 [groups, out], weight_zero int32
    [groups, out], zero points -128 to 127 -> float64 [tokens, out].
    """
    dots = _dots(x, x_zero, weight, weight_zero)
    return np.asarray((dots * _scales(x_scale, weight_scale)).sum(axis=0))


def _dots(x: Array, x_zero: Array, weight: Array, weight_zero: Array) -> Array:
    """Each group's exact integer dot product -> [groups, tokens, out]."""
    groups = x_zero.shape[1]
    x_ = _by_group(x, groups) - x_zero.T[:, :, None]
    w_ = _by_group(weight, groups) - weight_zero[:, :, None]
    return np.asarray(x_ @ w_.transpose(0, 2, 1))


def _by_group(rows: Array, groups: int) -> Array:
    apart = rows.reshape(len(rows), groups, rows.shape[1] // groups)
    return apart.transpose(1, 0, 2).astype(np.float64)


def _scales(x_scale: Array, weight_scale: Array) -> Array:
    products = x_scale.T[:, :, None].astype(np.float64) * weight_scale[:, None, :]
    return np.asarray(products)


def make(case: Case) -> Arguments:
    """Activations and weights of the case's kind, quantised."""
    rng, shape = case.rng(), case.shape
    groups, size = shape["groups"], shape["size"]
    found = {}
    for name, rows in (("x", shape["tokens"]), ("weight", shape["out"])):
        values = some_tokens(case, rng, rows, groups * size)
        q, scale, zero = quantise_asymmetric(values.reshape(rows * groups, size), 8)
        found[name] = q.reshape(rows, groups * size)
        found[f"{name}_scale"] = scale.reshape(rows, groups)
        found[f"{name}_zero"] = zero.reshape(rows, groups)
    for name in ("weight_scale", "weight_zero"):
        found[name] = np.ascontiguousarray(found[name].T)
    return found


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Dot products are exact. Their conversion to float32, the product of scales and one fused
    multiply-add for each group round: gamma(groups + 2) * sum |term|. A subnormal product of scales
    may be flushed: TINY times the dot product."""
    dots = np.abs(_dots(*(inputs[name] for name in ("x", "x_zero", "weight", "weight_zero"))))
    terms = dots * _scales(inputs["x_scale"], inputs["weight_scale"])
    out = gamma(len(dots) + 2) * terms.sum(axis=0) + TINY * (1 + dots).sum(axis=0)
    return {"out": out}


def complaint(inputs: Arguments) -> str:
    wrong = (no_zero_point(name, inputs[name]) for name in ("x_zero", "weight_zero"))
    return next(filter(None, wrong), "")


def cost(shape: Shape, format: str | None) -> Cost:
    tokens, out = shape["tokens"], shape["out"]
    hidden = shape["groups"] * shape["size"]
    scales = 8 * shape["groups"] * (tokens + out)
    return Cost(hidden * (tokens + out) + scales + 4 * tokens * out, 2 * tokens * hidden * out)


SIGNATURE = (
    "x: i8[tokens size*groups], x_scale: f32[tokens groups], x_zero: i32[tokens groups],"
    " weight: i8[out size*groups], weight_scale: f32[groups out], weight_zero: i32[groups out]"
    " -> out: f32[tokens out]"
)


OP = Op(
    name="linear_w8a8",
    reference=linear_w8a8,
    signature=SIGNATURE,
    axes={
        "tokens": (1, 2, 3, 4, 5, 8, 9, 17, 33),
        "groups": (1, 2, 3, 5),
        "size": (31, 32, 33, 64, 127, 128, 256),
        "out": (16, 31, 32, 33, 65, 127, 129, 257),
    },
    make=make,
    bound=bound,
    cost=cost,
    # more tokens, and longer groups, than a kernel's tile
    corners=(
        {"tokens": 0, "groups": 1, "size": 32, "out": 5},
        {"tokens": 1, "groups": 1, "size": 1, "out": 1},
        {"tokens": 2, "groups": 1, "size": 32, "out": 1},
        {"tokens": 67, "groups": 2, "size": 2112, "out": 33},
        {"tokens": 5, "groups": 1, "size": 33024, "out": 17},
        {"tokens": 1, "groups": 112, "size": 128, "out": 17},
        {"tokens": 7, "groups": 344, "size": 32, "out": 9},
        {"tokens": 513, "groups": 2, "size": 32, "out": 33},
        {"tokens": 65, "groups": 1, "size": 64, "out": 1000},
        {"tokens": 1, "groups": 1, "size": 32, "out": 65_600},
        {"tokens": 2, "groups": 1, "size": 32, "out": 65_600},
    ),
    complaint=complaint,
    nan="token",
    largest=FACTOR,
    laws=(
        alone(SIGNATURE, make),
        alone(SIGNATURE, make, "out"),
        contained(SIGNATURE, make),
        scales(make, ("x_scale",), (-1.0, 2.0**10, 2.0**-10)),
        cuts(SIGNATURE, make, {"groups": 1, "size": 4128}, {"groups": 33, "size": 128}),
        *W8A8,
    ),
)
