"""The linear layer: activations times a weight matrix kept in some weight format."""

import numpy as np

from reference.bounds import TINY, gamma
from reference.embedding import whole_blocks
from reference.formats import FORMATS
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.quantise_activations import BLOCK


def linear(x: Array, weight: Array, format: str) -> Array:
    """out = x W^T.

    x [tokens, hidden], weight uint8 [out, row_bytes] in `format` -> float64 [tokens, out].
    """
    w = FORMATS[format].dequantise(weight).astype(np.float64)
    return x.astype(np.float64) @ w.T


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    assert case.format is not None
    x = case.array(rng, shape["tokens"], shape["hidden"])
    w = case.array(rng, shape["out"], shape["hidden"])
    return {"x": x, "weight": FORMATS[case.format].quantise(w), "format": case.format}


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A dot product of length K: gamma(K + 1) * sum |w||x|, in any order of summation."""
    magnitude = linear(np.abs(inputs["x"]), *_absolute(inputs))
    return {"out": gamma(inputs["x"].shape[1] + 1) * magnitude + TINY * inputs["x"].shape[1]}


def quantised_bound(x: Array, inputs: Arguments) -> Array:
    """For a kernel on quantised activations x, against the product of those same activations.

    Dots inside a block are exact integers, so only the product of two scales, one fused multiply
    and the sum over blocks round: gamma(blocks + 3) * sum over blocks |dot|. -> [tokens, out].
    """
    w = FORMATS[inputs["format"]].dequantise(inputs["weight"]).astype(np.float64)
    blocks = x.shape[1] // BLOCK
    dots = np.einsum("tbk,obk->tob", _in_blocks(x), _in_blocks(w))
    return np.asarray(gamma(blocks + 3) * np.abs(dots).sum(axis=-1) + TINY * max(1, blocks))


def _in_blocks(rows: Array) -> Array:
    return rows.reshape(len(rows), rows.shape[1] // BLOCK, BLOCK)


def quantisation_step(scale: Array, inputs: Arguments) -> Array:
    """How far quantised activations may move the product: half a step of x times |w|, and what
    x * (1 / scale) is off by: at most 127 * 3 U < 2^-15 of a step.

    scale float32 [tokens, hidden / 32] -> [tokens, out].
    """
    half_step = np.repeat(scale.astype(np.float64), BLOCK, axis=-1) * (0.5 + 2**-15)
    return linear(half_step, *_absolute(inputs))


def to_bf16(inputs: Arguments) -> Arguments:
    """x and the weight rounded to bfloat16, the latter as an F32 weight."""
    bf16 = FORMATS["BF16"]
    w = bf16.dequantise(bf16.quantise(FORMATS[inputs["format"]].dequantise(inputs["weight"])))
    x = bf16.dequantise(bf16.quantise(inputs["x"]))
    weight = w.astype(np.float32).view(np.uint8).reshape(len(w), -1)
    return {"x": x, "weight": weight, "format": "F32"}


def bf16_bound(inputs: Arguments) -> Array:
    """For a kernel on bfloat16 numbers, against the product of those same numbers.

    Products of two are exact in float32, sums round as in any order. The instructions take
    subnormal inputs and results for zero: TINY for each sum, and TINY times the other factor for
    each input. -> [tokens, out].
    """
    x = np.abs(inputs["x"]).astype(np.float64)
    weight, float32 = _absolute(inputs)
    w = FORMATS[float32].dequantise(weight).astype(np.float64)
    flushed = TINY * (2 * x.shape[1] + x.sum(axis=1)[:, None] + w.sum(axis=1)[None])
    return np.asarray(gamma(x.shape[1] + 1) * (x @ w.T) + flushed)


def bf16_step(inputs: Arguments) -> Array:
    """How far rounding x and the weight to bfloat16's eight bits may move the product.
    -> [tokens, out]."""
    magnitude = linear(np.abs(inputs["x"]), *_absolute(inputs))
    return np.asarray(((1 + 2.0**-8) ** 2 - 1) * magnitude + TINY * 2 * inputs["x"].shape[1])


def _absolute(inputs: Arguments) -> tuple[Array, str]:
    """The weight's magnitudes, as an F32 weight."""
    w = FORMATS[inputs["format"]].dequantise(inputs["weight"])
    return np.abs(w).view(np.uint8).reshape(w.shape[0], -1), "F32"


def cost(shape: Shape, format: str | None) -> Cost:
    tokens, hidden, out = shape["tokens"], shape["hidden"], shape["out"]
    weight = out * FORMATS[format or "F32"].row_bytes(hidden)
    return Cost(weight + 4 * tokens * (hidden + out), 2 * tokens * hidden * out)


OP = Op(
    name="linear",
    reference=linear,
    signature="x: f32[tokens hidden], weight: format[out hidden] -> out: f32[tokens out]",
    axes={
        "tokens": (0, 1, 2, 3, 4, 5, 9, 33),
        "hidden": (1, 2, 31, 33, 127, 129, 256),
        "out": (1, 2, 31, 32, 33, 65, 127),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=tuple(FORMATS),
    fit=whole_blocks,
    # more tokens than a kernel holds at once, and a hidden that it has to cut
    corners=({"tokens": 67, "hidden": 2112, "out": 33}, {"tokens": 273, "hidden": 1056, "out": 17}),
    nan="token",
)
