"""Activations as int8: blocks of 32 with one float32 scale, as linear wants them for quantised
weights (ggml's Q8_0, its scale kept in float32; and ggml's Q8_1 sum, kept as an integer)."""

import numpy as np

from reference.laws.common import alone
from reference.laws.quantise_activations import LAWS
from reference.op import Arguments, Array, Case, Cost, Op, Shape

BLOCK = 32


def quantise_activations(x: Array) -> tuple[Array, Array, Array]:
    """scale = max|x| / 127 over a block; q = x / scale rounded half away from zero.

    x float32 [tokens, hidden] -> q int8 [tokens, hidden], scale float32 [tokens, hidden / 32],
    total int32 [tokens, hidden / 32] (the sum of q). Defined in float32, so that every correct
    kernel gives the same bits. A block with a NaN or infinity has scale NaN and q 0.
    """
    blocks = x.astype(np.float32).reshape(x.shape[0], x.shape[1] // BLOCK, BLOCK)
    finite = np.asarray(np.isfinite(blocks).all(axis=-1))
    blocks = np.where(finite[..., None], blocks, np.float32(0))
    scale = np.abs(blocks).max(axis=-1) / np.float32(127)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
        inverse = np.where(np.isinf(inverse), np.float32(0), inverse)
    scaled = blocks * inverse[..., None]
    q = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    total = q.sum(axis=-1, dtype=np.int32)
    return q.reshape(x.shape), np.where(finite, scale, np.float32(np.nan)), total


def dequantise_activations(q: Array, scale: Array) -> Array:
    """q int8 [tokens, hidden], scale float32 [tokens, hidden / 32] -> float64 [tokens, hidden]."""
    return q.astype(np.float64) * np.repeat(scale.astype(np.float64), BLOCK, axis=-1)


def make(case: Case) -> Arguments:
    return {"x": case.array(case.rng(), case.shape["tokens"], case.shape["hidden"])}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: the definition fixes every bit."""
    return {name: np.zeros(value.shape) for name, value in expected.items()}


def cost(shape: Shape, format: str | None) -> Cost:
    elements = shape["tokens"] * shape["hidden"]
    return Cost(elements * (4 + 1 + 8 / BLOCK), 4 * elements)


def fit(shape: Shape, format: str | None) -> Shape:
    return {**shape, "hidden": -(-shape["hidden"] // BLOCK) * BLOCK}


SIGNATURE = (
    "x: f32[tokens hidden] -> "
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32]"
)


OP = Op(
    name="quantise_activations",
    reference=quantise_activations,
    signature=SIGNATURE,
    axes={"tokens": (1, 2, 7, 9, 33), "hidden": (32, 64, 96, 256, 2048)},
    make=make,
    bound=bound,
    cost=cost,
    fit=fit,
    corners=(
        {"tokens": 0, "hidden": 64},
        {"tokens": 5, "hidden": 14_336},
        {"tokens": 65, "hidden": 11_040},
        {"tokens": 513, "hidden": 288},
    ),
    nan="token",
    largest=2.0**127,  # whatever float32 holds
    laws=(alone(SIGNATURE, make), *LAWS),
)
