"""Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864).

Pair i of a head at position p turns by the angle p * frequency[i]. `rotation` makes the cosines
and sines once a step; `rope_norm` and `rope_neox` apply them and differ in what a pair is:
neighbours (2i, 2i + 1), as GGUF's llama has it, or (i, i + pairs), as GPT-NeoX and Hugging Face do.
Dimensions beyond 2 * pairs pass unchanged. How scaling changes frequencies: `rope_frequencies.py`.
"""

from collections.abc import Callable

import numpy as np

from reference.bounds import TINY, U, gamma
from reference.op import Arguments, Array, Bound, Case, Cost, Op, Shape


def rotation(positions: Array, frequencies: Array, magnitude: float) -> Array:
    """magnitude * (cos, sin)(positions[t] * frequencies[i]).

    positions int32 [tokens], frequencies float64 [pairs] (radians a position)
    -> float64 [tokens, pairs, 2].
    """
    angle = positions[:, None].astype(np.float64) * frequencies
    return magnitude * np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def rope_norm(x: Array, rotation: Array) -> Array:
    """Turn the pairs (2i, 2i + 1).

    x [tokens, heads, head_dim], rotation [tokens, pairs, 2] -> float64, like x.
    """
    pairs = rotation.shape[1]
    return _turn(x, rotation, slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))


def rope_neox(x: Array, rotation: Array) -> Array:
    """Turn the pairs (i, i + pairs); shapes as for rope_norm."""
    pairs = rotation.shape[1]
    return _turn(x, rotation, slice(0, pairs), slice(pairs, 2 * pairs))


def _turn(x: Array, rotation: Array, first: slice, second: slice) -> Array:
    out = x.astype(np.float64)
    a, b = out[:, :, first].copy(), out[:, :, second].copy()
    cos, sin = rotation[:, None, :, 0].astype(np.float64), rotation[:, None, :, 1]
    out[:, :, first] = a * cos - b * sin
    out[:, :, second] = a * sin + b * cos
    return out


def make_rotation(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    dims = 2 * np.arange(shape["pairs"]) / max(1, 2 * shape["pairs"])
    return {
        "positions": rng.integers(0, 131072, shape["tokens"], dtype=np.int32),
        "frequencies": float(rng.choice([1e4, 5e5])) ** -dims,
        "magnitude": float(rng.choice([1.0, 1.1386])),
    }


def rotation_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The angle is formed in float64, so only the result's rounding to float32 is seen."""
    angle = inputs["positions"][:, None] * np.abs(inputs["frequencies"])
    angle_error = inputs["magnitude"] * 2.0**-51 * (1 + angle)[..., None]
    return {"out": U * np.abs(expected["out"]) + angle_error}


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    angle = rng.uniform(0, 2 * np.pi, (shape["tokens"], shape["pairs"]))
    turn = np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)
    return {
        "x": case.array(rng, shape["tokens"], shape["heads"], shape["head_dim"]),
        "rotation": turn,
    }


def turned_bound(inputs: Arguments, first: slice, second: slice) -> dict[str, Array]:
    """Two products and a sum: gamma(2) * (|a||cos| + |b||sin|); what is not turned is exact."""
    x, turn = np.abs(inputs["x"]).astype(np.float64), np.abs(inputs["rotation"])[:, None]
    a, b, cos, sin = x[:, :, first], x[:, :, second], turn[..., 0], turn[..., 1]
    bound = np.zeros(x.shape)
    bound[:, :, first] = gamma(2) * (a * cos + b * sin) + TINY
    bound[:, :, second] = gamma(2) * (a * sin + b * cos) + TINY
    return {"out": bound}


def norm_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    pairs = inputs["rotation"].shape[1]
    return turned_bound(inputs, slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))


def neox_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    pairs = inputs["rotation"].shape[1]
    return turned_bound(inputs, slice(0, pairs), slice(pairs, 2 * pairs))


def rotation_cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["pairs"]
    return Cost(8 * elements, 3 * elements)


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["heads"] * shape["head_dim"]
    return Cost(8 * elements + 8 * shape["tokens"] * shape["pairs"], 3 * elements)


def fit(shape: Shape, format: str | None) -> Shape:
    """head_dim holds whole pairs."""
    head_dim = max(2, shape["head_dim"] // 2 * 2, 2 * shape["pairs"])
    return {**shape, "head_dim": head_dim}


def _row(reference: Callable[[Array, Array], Array], bound: Bound) -> Op:
    return Op(
        name=reference.__name__,
        reference=reference,
        signature=(
            "x: f32[tokens heads head_dim], rotation: f32[tokens pairs 2]"
            " -> out: f32[tokens heads head_dim]"
        ),
        axes={
            "tokens": (0, 1, 2, 7),
            "heads": (1, 3, 8),
            "head_dim": (2, 6, 32, 64, 128),
            "pairs": (1, 3, 16, 32, 64),
        },
        make=make,
        bound=bound,
        cost=cost,
        fit=fit,
        nan="token",
    )


OPS = (
    Op(
        name="rotation",
        reference=rotation,
        signature=(
            "positions: i32[tokens], frequencies: f64[pairs], magnitude: f64"
            " -> out: f32[tokens pairs 2]"
        ),
        axes={"tokens": (0, 1, 2, 7, 33), "pairs": (1, 3, 32, 64)},
        make=make_rotation,
        bound=rotation_bound,
        cost=rotation_cost,
        values=("normal",),
    ),
    _row(rope_norm, norm_bound),
    _row(rope_neox, neox_bound),
)
