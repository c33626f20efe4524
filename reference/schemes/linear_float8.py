"""The linear layer on FP8, y = s_x s_w sum q_x q_w, both operands E4M3 or both E5M2, with a scale
for each token and each row of the weight (arXiv 2209.05433; a per-tensor scale is repeated)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from reference.bounds import FACTOR, TINY, gamma
from reference.laws.common import alone, contained, scales
from reference.laws.schemes import cuts, every_code_is_its_number
from reference.linear import some_tokens
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.schemes.float8 import E4M3, E5M2, Float8, any_codes, quantised


def linear_e4m3(x: Array, x_scale: Array, weight: Array, weight_scale: Array) -> Array:
    """out = x_scale weight_scale sum x weight, with the codes' E4M3 values.

    x uint8 [tokens, hidden], x_scale float32 [tokens], weight uint8 [out, hidden], weight_scale
    float32 [out] -> float64 [tokens, out].
    """
    return _product(E4M3, x, x_scale, weight, weight_scale)


def linear_e5m2(x: Array, x_scale: Array, weight: Array, weight_scale: Array) -> Array:
    """linear_e4m3 with E5M2 values; shapes as for it."""
    return _product(E5M2, x, x_scale, weight, weight_scale)


def _product(kind: Float8, x: Array, x_scale: Array, weight: Array, weight_scale: Array) -> Array:
    x_, w = kind.decode(x).astype(np.float64), kind.decode(weight).astype(np.float64)
    return np.asarray((x_ @ w.T) * np.outer(x_scale.astype(np.float64), weight_scale))


def make(kind: Float8, case: Case) -> Arguments:
    found = {}
    for name, values in zip(("x", "weight"), _values(case), strict=True):
        q, found[f"{name}_scale"] = quantised(values, kind)
        found[name] = any_codes(case, kind, q)
    return found


def _values(case: Case) -> tuple[Array, Array]:
    rng, shape = case.rng(), case.shape
    sides = shape["tokens"], shape["out"]
    x, weight = (some_tokens(case, rng, rows, shape["hidden"]) for rows in sides)
    return x, weight


def bound(kind: Float8, inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A dot product of length K of exact numbers, the product of scales and that of both: gamma(K +
    2) * sum |term|. No sum is subnormal; a product of scales may be, and may be flushed: TINY times
    the dot product."""
    magnitude = {name: inputs[name] & 0x7F for name in ("x", "weight")}
    ones = {f"{name}_scale": np.ones(len(inputs[name]), np.float32) for name in ("x", "weight")}
    dots = _product(kind, **magnitude, **ones)
    scales = np.outer(inputs["x_scale"].astype(np.float64), inputs["weight_scale"])
    return {"out": gamma(inputs["x"].shape[1] + 2) * dots * scales + TINY * (1 + dots)}


def cost(shape: Shape, format: str | None) -> Cost:
    tokens, hidden, out = shape["tokens"], shape["hidden"], shape["out"]
    moved = (hidden + 4) * (tokens + out) + 4 * tokens * out
    return Cost(moved, 2 * tokens * hidden * out)


SIGNATURE = (
    "x: u8[tokens hidden], x_scale: f32[tokens], weight: u8[out hidden], weight_scale: f32[out]"
    " -> out: f32[tokens out]"
)
AXES = {
    "tokens": (1, 2, 3, 4, 5, 8, 9, 17, 33),
    "hidden": (31, 33, 127, 129, 256, 257),
    "out": (16, 31, 33, 65, 127, 129, 257),
}
CORNERS = (
    {"tokens": 0, "hidden": 33, "out": 5},
    {"tokens": 1, "hidden": 1, "out": 1},
    {"tokens": 3, "hidden": 2, "out": 2},
    {"tokens": 67, "hidden": 2112, "out": 33},  # more than a kernel's tile
    {"tokens": 1, "hidden": 14_336, "out": 17},
    {"tokens": 7, "hidden": 11_009, "out": 9},
    {"tokens": 513, "hidden": 65, "out": 33},
    {"tokens": 65, "hidden": 33, "out": 1000},
    {"tokens": 1, "hidden": 3, "out": 65_600},
    {"tokens": 2, "hidden": 5, "out": 65_600},
)


def _row(kind: Float8, name: str, reference: Callable[..., Any]) -> Op:
    own = partial(make, kind)
    one = int(kind.encode(np.ones(1, np.float32))[0])
    return Op(
        name=name,
        reference=reference,
        signature=SIGNATURE,
        axes=AXES,
        make=own,
        bound=partial(bound, kind),
        cost=cost,
        corners=CORNERS,
        nan="token",
        largest=FACTOR,
        laws=(
            alone(SIGNATURE, own),
            alone(SIGNATURE, own, "out"),
            contained(SIGNATURE, own),
            scales(own, ("x_scale",), (-1.0, 2.0**10, 2.0**-10)),
            cuts(SIGNATURE, own, {"hidden": 2100}),
            every_code_is_its_number(kind.decode, one),
        ),
    )


OPS = (_row(E4M3, "linear_e4m3", linear_e4m3), _row(E5M2, "linear_e5m2", linear_e5m2))
