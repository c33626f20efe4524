"""Rotary position embedding (Su et al., RoFormer, arXiv 2104.09864): x_m rotated by m theta_i.

Pair i of a head at position m is rotated by the angle m * theta_i, theta_i = frequencies[i].
`rotation` computes the cosines and sines once a step; `rope_norm` and `rope_neox` apply them to
adjacent pairs (2i, 2i + 1), as in GGUF's llama, or to (i, i + pairs), as in GPT-NeoX and Hugging
Face. Dimensions beyond 2 * pairs are copied. Context extension: `rope_frequencies.py`.
"""

from collections.abc import Callable

import numpy as np

from reference.bounds import TINY, U, gamma
from reference.laws.common import alone, contained, scales
from reference.laws.rope import LAWS_OF_ROTATION, LAWS_OF_TURNING
from reference.op import Arguments, Array, Bound, Case, Cost, Op, Shape
from reference.sizes import TOKENS

ROTATION = (
    "positions: i32[tokens], frequencies: f64[pairs], magnitude: f64, temperature: f64, length: i64"
    " -> out: f32[tokens pairs 2]"
)
TURNED = (
    "x: f32[tokens heads head_dim], rotation: f32[tokens pairs 2]"
    " -> out: f32[tokens heads head_dim]"
)


def rotation(
    positions: Array,
    frequencies: Array,
    magnitude: float,
    temperature: float = 0.0,
    length: int = 1,
) -> Array:
    """magnitude * (cos, sin)(positions[t] * frequencies[i]), for queries with an attention
    temperature (Llama 4, Ministral 3) times 1 + temperature * ln(1 + positions[t] // length).

    positions int32 [tokens], frequencies float64 [pairs] (radians a position)
    -> float64 [tokens, pairs, 2].
    """
    angle = positions[:, None].astype(np.float64) * frequencies
    tuned = magnitude * (1 + temperature * np.log1p(positions // length))
    return np.asarray(tuned[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], axis=-1))


def rope_norm(x: Array, rotation: Array) -> Array:
    """Rotate the pairs (2i, 2i + 1).

    x [tokens, heads, head_dim], rotation [tokens, pairs, 2] -> float64, like x.
    """
    pairs = rotation.shape[1]
    return _rotate(x, rotation, slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))


def rope_neox(x: Array, rotation: Array) -> Array:
    """Rotate the pairs (i, i + pairs); shapes as for rope_norm."""
    pairs = rotation.shape[1]
    return _rotate(x, rotation, slice(0, pairs), slice(pairs, 2 * pairs))


def _rotate(x: Array, rotation: Array, first: slice, second: slice) -> Array:
    out = x.astype(np.float64)
    a, b = out[:, :, first].copy(), out[:, :, second].copy()
    cos, sin = rotation[:, None, :, 0].astype(np.float64), rotation[:, None, :, 1]
    out[:, :, first] = a * cos - b * sin
    out[:, :, second] = a * sin + b * cos
    return out


def make_rotation(case: Case) -> Arguments:
    """Positions of all magnitudes, RoPE bases of models and far beyond, and in every other case a
    temperature, with lengths from one token."""
    rng, shape = case.rng(), case.shape
    base = (1e4, 5e5, 1e6, 10 ** rng.uniform(0, 10))[case.seed % 4]
    stretch = float(rng.choice([1, 1, 4, 32]))
    return {
        "positions": (2 ** rng.uniform(0, 31, shape["tokens"]) - 1).astype(np.int32),
        "frequencies": base ** -(np.arange(shape["pairs"]) / shape["pairs"]) / stretch,
        "magnitude": some_magnitude(case),
        "temperature": (0.0, 0.1)[case.seed % 2],
        "length": int(2 ** rng.uniform(0, 20)),
    }


def some_magnitude(case: Case) -> float:
    """Magnitudes of plain RoPE, of YaRN, and others, another for each seed."""
    return (1.0, 1.1386, 0.5, 2.0, 1e-3)[case.seed % 5]


def rotation_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """The angle and the factors are float64, so only the rounding of the result to float32
    counts."""
    positions = inputs["positions"][:, None]
    tuned = 1 + inputs["temperature"] * np.log1p(positions // inputs["length"])
    angle = positions * np.abs(inputs["frequencies"])
    angle_error = inputs["magnitude"] * tuned[..., None] * 2.0**-51 * (2 + angle)[..., None]
    return {"out": U * np.abs(expected["out"]) + angle_error}


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    angle = rng.uniform(0, 2 * np.pi, (shape["tokens"], shape["pairs"]))
    turn = some_magnitude(case) * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    return {
        "x": case.array(rng, shape["tokens"], shape["heads"], shape["head_dim"]),
        "rotation": turn.astype(np.float32),
    }


def rotated_bound(inputs: Arguments, first: slice, second: slice) -> dict[str, Array]:
    """Two products and a sum: gamma(2) * (|a||cos| + |b||sin|), and each of the three may
    underflow; elements beyond the pairs are exact."""
    x, turn = np.abs(inputs["x"]).astype(np.float64), np.abs(inputs["rotation"])[:, None]
    a, b, cos, sin = x[:, :, first], x[:, :, second], turn[..., 0], turn[..., 1]
    bound = np.zeros(x.shape)
    bound[:, :, first] = gamma(2) * (a * cos + b * sin) + 3 * TINY
    bound[:, :, second] = gamma(2) * (a * sin + b * cos) + 3 * TINY
    return {"out": bound}


def norm_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    pairs = inputs["rotation"].shape[1]
    return rotated_bound(inputs, slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2))


def neox_bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    pairs = inputs["rotation"].shape[1]
    return rotated_bound(inputs, slice(0, pairs), slice(pairs, 2 * pairs))


def rotation_cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["pairs"]
    return Cost(8 * elements, 3 * elements)


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["heads"] * shape["head_dim"]
    return Cost(8 * elements + 8 * shape["tokens"] * shape["pairs"], 3 * elements)


def fit(shape: Shape, format: str | None) -> Shape:
    """head_dim is even and holds the pairs."""
    head_dim = max(2, shape["head_dim"] // 2 * 2, 2 * shape["pairs"])
    return {**shape, "head_dim": head_dim}


def _row(reference: Callable[[Array, Array], Array], bound: Bound) -> Op:
    return Op(
        name=reference.__name__,
        reference=reference,
        signature=TURNED,
        axes={
            "tokens": TOKENS,
            "heads": (1, 2, 3, 5, 8, 9, 16, 17, 33),
            "head_dim": (2, 6, 16, 18, 32, 34, 64, 66, 96, 130),
            "pairs": (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 65),
        },
        make=make,
        bound=bound,
        cost=cost,
        fit=fit,
        corners=(
            {"tokens": 0, "heads": 3, "head_dim": 10, "pairs": 5},
            {"tokens": 65, "heads": 8, "head_dim": 64, "pairs": 32},
            {"tokens": 513, "heads": 2, "head_dim": 10, "pairs": 3},
            {"tokens": 3, "heads": 64, "head_dim": 128, "pairs": 64},
            {"tokens": 2, "heads": 71, "head_dim": 64, "pairs": 32},
            {"tokens": 3, "heads": 32, "head_dim": 80, "pairs": 40},
            {"tokens": 3, "heads": 32, "head_dim": 80, "pairs": 16},
            {"tokens": 3, "heads": 8, "head_dim": 256, "pairs": 128},
            {"tokens": 2, "heads": 8, "head_dim": 256, "pairs": 32},
        ),
        nan="token",
        largest=2.0**125,  # two products, each up to twice that, are added
        laws=(
            alone(TURNED, make),
            alone(TURNED, make, "heads"),
            contained(TURNED, make),
            scales(make, ["x"], [-1, 2, 0.5]),
            *LAWS_OF_TURNING[reference.__name__],
        ),
    )


OPS = (
    Op(
        name="rotation",
        reference=rotation,
        signature=ROTATION,
        axes={"tokens": TOKENS, "pairs": (1, 2, 3, 5, 8, 9, 16, 17, 31, 32, 33, 40, 48, 64, 65)},
        make=make_rotation,
        bound=rotation_bound,
        cost=rotation_cost,
        values=("normal",),
        corners=(
            {"tokens": 0, "pairs": 5},
            {"tokens": 65, "pairs": 32},
            {"tokens": 513, "pairs": 3},
            {"tokens": 9, "pairs": 128},
        ),
        laws=(
            alone(ROTATION, make_rotation),
            alone(ROTATION, make_rotation, "pairs"),
            *LAWS_OF_ROTATION,
        ),
    ),
    _row(rope_norm, norm_bound),
    _row(rope_neox, neox_bound),
)
