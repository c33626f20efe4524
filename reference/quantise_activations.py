"""Quantise activations to int8 for `linear` on quantised weights, q = round(x / s), s = max|x| /
127: blocks of 32 (ggml's Q8_0 with a float32 scale, and Q8_1's sum as an integer), or of 256 for
weights in superblocks (ggml's Q8_K)."""

from dataclasses import replace

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import alone
from reference.laws.quantise_activations import laws
from reference.op import Arguments, Array, Case, Cost, Op, Shape

BLOCK = 32


SUPERBLOCK = 256


def quantise_activations(x: Array) -> tuple[Array, Array, Array]:
    """scale = max|x| / 127 over a block; q = x / scale rounded half away from zero.

    x float32 [tokens, hidden] -> q int8 [tokens, hidden], scale float32 [tokens, hidden / 32],
    total int32 [tokens, hidden / 32] (the sum of q). Defined in float32, so that every correct
    kernel gives the same bits. A block with a NaN or infinity has scale NaN and q 0.
    """
    return _quantised(x, BLOCK)


def quantise_activations_256(x: Array) -> tuple[Array, Array, Array]:
    """The same with one scale for 256 elements, as in ggml's Q8_K, for weights in superblocks.

    x float32 [tokens, hidden] -> q int8 [tokens, hidden], scale float32 [tokens, hidden / 32],
    total int32 [tokens, hidden / 32]: the scale is repeated for each block of 32, so that readers
    of blocks of 32 can use these. The last block may have fewer than 256 elements.
    """
    return _quantised(x, SUPERBLOCK)


def _quantised(x: Array, together: int) -> tuple[Array, Array, Array]:
    tokens, hidden = x.shape
    padded = np.pad(x.astype(np.float32), ((0, 0), (0, -hidden % together)))
    blocks = padded.reshape(tokens, padded.shape[1] // together, together)
    finite = np.asarray(np.isfinite(blocks).all(axis=-1))
    blocks = np.where(finite[..., None], blocks, np.float32(0))
    scale = np.abs(blocks).max(axis=-1) / np.float32(127)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
        inverse = np.where(np.isinf(inverse), np.float32(0), inverse)
    scaled = blocks * inverse[..., None]
    q = np.trunc(scaled + np.copysign(np.float32(0.5), scaled)).astype(np.int8)
    q = q.reshape(padded.shape)[:, :hidden]
    total = q.reshape(tokens, hidden // BLOCK, BLOCK).sum(axis=-1, dtype=np.int32)
    scale = np.where(finite, scale, np.float32(np.nan))
    return q, np.repeat(scale, together // BLOCK, axis=-1)[:, : hidden // BLOCK], total


ROUNDINGS = {"int8": quantise_activations, "int8_256": quantise_activations_256}
# The op that quantises a kernel's activations, by its row's `activations`
QUANTISING = {kind: op.__name__ for kind, op in ROUNDINGS.items()}


def rounding_for(format: str) -> str:
    """How activations are rounded for weights of this block format."""
    return "int8_256" if FORMATS[format].block == SUPERBLOCK else "int8"


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


def fit(shape: Shape, format: str | None, together: int = BLOCK) -> Shape:
    return {**shape, "hidden": -(-shape["hidden"] // together) * together}


def fit_256(shape: Shape, format: str | None) -> Shape:
    return fit(shape, format, SUPERBLOCK)


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
    largest=2.0**127,  # the end of float32
    laws=(alone(SIGNATURE, make), *laws(BLOCK)),
)
OP_256 = replace(
    OP,
    name="quantise_activations_256",
    reference=quantise_activations_256,
    axes={"tokens": (1, 2, 7, 9, 33), "hidden": (256, 512, 768, 2048)},
    fit=fit_256,
    laws=(alone(SIGNATURE, make), *laws(SUPERBLOCK)),
)
