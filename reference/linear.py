"""The linear layer, y = x W^T, with the weight matrix W in any weight format."""

from functools import partial

import numpy as np

from reference.bounds import ALIGNED, FACTOR, TINY, U, gamma, gamma_truncated
from reference.embedding import whole_blocks
from reference.formats import FORMATS
from reference.formats.format import NO_INVERSE
from reference.ggml import DOT, as_ggml, halves
from reference.laws.common import alone, contained, scales
from reference.laws.linear import LAWS, cuts
from reference.op import Arguments, Array, Case, Cost, Op, Shape
from reference.quantise_activations import (
    BLOCK,
    ROUNDINGS,
    dequantise_activations,
    rounding_for,
)
from reference.values import NOT_FINITE

HALF = 32  # consecutive elements whose products tensor cores accumulate


def linear(x: Array, weight: Array, format: str) -> Array:
    """out = x W^T.

    x [tokens, hidden], weight uint8 [out, row_bytes] in `format` -> float64 [tokens, out]. A file
    may hold infinite scales or NaN, which make their row's outputs infinite or NaN.
    """
    w = FORMATS[format].dequantise(weight).astype(np.float64)
    return x.astype(np.float64) @ w.T


def make(case: Case) -> Arguments:
    rng, shape = case.rng(), case.shape
    x = some_tokens(case, rng, shape["tokens"], shape["hidden"])
    weight = case.weight(rng, shape["out"], shape["hidden"])
    return {"x": x, "weight": weight, "format": case.format}


def some_tokens(case: Case, rng: np.random.Generator, tokens: int, hidden: int) -> Array:
    """Values of the case's kind; if it includes infinities or NaN, every other row, the first
    included, is finite, so that effects of the weight are visible."""
    x = case.array(rng, tokens, hidden)
    if case.values in NOT_FINITE:
        x[::2] = case.finite(rng, *x[::2].shape)
    return x


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """A dot product of length K: gamma(K + 1) * sum |w||x|, in any order of summation. Each of K
    products and K sums may be flushed to zero."""
    magnitude = linear(np.abs(inputs["x"]), *_absolute(inputs))
    return {"out": gamma(inputs["x"].shape[1] + 1) * magnitude + 2 * TINY * inputs["x"].shape[1]}


def bound_in_parts(inputs: Arguments, expected: dict[str, Array], parts: int) -> dict[str, Array]:
    """For tensor cores that take an activation as a sum of two float16 or three bfloat16.

    Products of parts are exact; those of HALF elements are added by instructions that may truncate,
    at least eight at a time (`gamma_truncated`), and halves by fused multiply-adds with a power of
    2. An element's parts sum to less than 1 + 2^-7 times its size. Three bfloat16 hold its 24 bits,
    two float16 22, unless the lower is subnormal: a half's largest element is between 2^14 and
    2^15, and none loses more than 2^-25, 2^-39 of the largest. Subnormals may be flushed. A
    float16 below ALIGNED truncates its neighbours as if it were that: two parts of an activation,
    2^-27 of the half's largest.
    """
    x, hidden = np.abs(inputs["x"]).astype(np.float64), inputs["x"].shape[1]
    w = np.abs(FORMATS[inputs["format"]].dequantise(inputs["weight"])).astype(np.float64)
    fill = ((0, 0), (0, -hidden % HALF))
    over, met = (np.pad(a, fill).reshape(len(a), -(-hidden // HALF), HALF) for a in (x, w))
    growth = (1 + gamma_truncated(parts * min(hidden, HALF), 8)) * (1 + gamma(over.shape[1]))
    size = (1 + 2.0**-7) * (growth * (1 + 2.0**-22) - 1) * (x @ w.T)
    cut = 0.0
    if parts == 2:
        largest, least = over.max(axis=2), np.maximum(met, ALIGNED).sum(axis=2)
        cut = 2.0**-39 * (largest @ met.sum(axis=2).T) + 2.0**-27 * (growth - 1) * largest @ least.T
        size += (1 + 2.0**-7) * (growth - 1) * (x @ np.maximum(ALIGNED - w, 0).T)
    flushed = TINY * (2 * hidden + parts * (x.sum(axis=1)[:, None] + w.sum(axis=1)[None]))
    return {"out": np.asarray(size + cut + flushed)}


def quantised_bound(x: Array, inputs: Arguments) -> Array:
    """For a kernel on quantised activations x, relative to the product of those same activations.

    Dot products inside a part, the elements that share a scale, are exact integers, and so is the
    sum of x that a part's offset multiplies: only products of scales, a fused multiply-add for each
    of the two and the sum over parts round, gamma(terms + 3) * sum |term|. Weights of three factors
    or with an offset are rounded once when decoded, the kernel's are not: U * sum |w||x|. A product
    of scales may be flushed, TINY times a dot product of at most DOT. With one scale for a
    superblock its parts may also be added as integers, with fewer roundings. -> [tokens, out].
    """
    layout = FORMATS[inputs["format"]]
    w = layout.dequantise(inputs["weight"]).astype(np.float64)
    parts = x.shape[1] // layout.part
    terms, scaled, rounded = parts, w, U if layout.block > layout.part else 0.0
    if layout.offset:
        blocks = inputs["weight"].reshape(-1, layout.block_bytes)
        offset = layout.offset(blocks).reshape(w.shape).astype(np.float64)
        terms, scaled, rounded = 2 * parts, w - offset, U
    size = np.abs(_in_parts(x, parts) @ _in_parts(scaled, parts).transpose(0, 2, 1)).sum(axis=0)
    if layout.offset:
        size += np.abs(_in_parts(x, parts).sum(axis=-1)).T @ np.abs(offset[:, :: layout.part]).T
    decoded = rounded * (np.abs(x) @ np.abs(w).T) if rounded else 0.0
    return np.asarray(gamma(terms + 3) * size + decoded + DOT * TINY * max(1, terms))


def _in_parts(rows: Array, parts: int) -> Array:
    """[rows, hidden] -> [parts, rows, hidden / parts]."""
    return rows.reshape(len(rows), parts, rows.shape[1] // parts).transpose(1, 0, 2)


def quantisation_step(scale: Array, inputs: Arguments) -> Array:
    """How far quantising activations may move the product: half a step of x times |w|, and the
    error of x * (1 / scale): at most 127 * 3 U < 2^-15 of a step. In a block whose scale has no
    inverse all of x is lost: less than 128 * 2^-128.

    scale float32 [tokens, hidden / 32] -> [tokens, out].
    """
    moved = np.where(scale > NO_INVERSE, scale.astype(np.float64) * (0.5 + 2**-15), 2.0**-121)
    return linear(np.repeat(moved, BLOCK, axis=-1), *_absolute(inputs))


def to_bf16(inputs: Arguments) -> Arguments:
    """x and the weight rounded to bfloat16, the latter as F32 bytes."""
    bf16 = FORMATS["BF16"]
    w = bf16.dequantise(bf16.quantise(FORMATS[inputs["format"]].dequantise(inputs["weight"])))
    x = bf16.dequantise(bf16.quantise(inputs["x"]))
    weight = w.astype(np.float32).view(np.uint8).reshape(len(w), -1)
    return {"x": x, "weight": weight, "format": "F32"}


def bf16_bound(inputs: Arguments) -> Array:
    """For a kernel on bfloat16 numbers, relative to the product of those same numbers.

    Products of two are exact in float32; they are added in any order, by instructions that may add
    many at once and truncate. Those of CPUs flush subnormal inputs and results: TINY for each sum,
    and TINY times the other factor for each input. -> [tokens, out].
    """
    x = np.abs(inputs["x"]).astype(np.float64)
    weight, float32 = _absolute(inputs)
    w = FORMATS[float32].dequantise(weight).astype(np.float64)
    flushed = TINY * (2 * x.shape[1] + x.sum(axis=1)[:, None] + w.sum(axis=1)[None])
    return np.asarray(gamma_truncated(x.shape[1]) * (x @ w.T) + flushed)


def bf16_step(inputs: Arguments) -> Array:
    """How far rounding x and the weight to bfloat16 may move the product. -> [tokens, out]."""
    magnitude = linear(np.abs(inputs["x"]), *_absolute(inputs))
    return np.asarray(((1 + 2.0**-8) ** 2 - 1) * magnitude + TINY * 2 * inputs["x"].shape[1])


def as_int8(inputs: Arguments, rounding: str = "int8") -> tuple[Arguments, Array, Array]:
    """Op.rounded for activations in blocks of int8."""
    q, scale, _ = ROUNDINGS[rounding](inputs["x"])
    exact = {**inputs, "x": dequantise_activations(q, scale)}
    return exact, quantised_bound(exact["x"], inputs), quantisation_step(scale, inputs)


as_int8_256 = partial(as_int8, rounding="int8_256")


def linear_of_quantised(x: Array, weight: Array, format: str) -> Array:
    """linear with activations that are quantised to int8 first, as for the weight's format."""
    q, scale, _ = ROUNDINGS[rounding_for(format)](x)
    return linear(dequantise_activations(q, scale), weight, format)


def as_bf16(inputs: Arguments) -> tuple[Arguments, Array, Array]:
    """Op.rounded for activations and weights in bfloat16."""
    exact = to_bf16(inputs)
    return exact, bf16_bound(exact), bf16_step(inputs)


def rounded_by_ggml(inputs: Arguments) -> tuple[Arguments, Array, Array]:
    """Op.rounded for activations in ggml's format for the weight."""
    layout = FORMATS[inputs["format"]]
    if layout.name == "BF16":
        return as_bf16(inputs)
    if layout.block > 1:
        return as_ggml(inputs, layout.dequantise(inputs["weight"]))
    exact, step = halves(inputs) if layout.name == "F16" else (inputs, np.zeros((1, 1)))
    return exact, bound(exact, {})["out"], step


def _absolute(inputs: Arguments) -> tuple[Array, str]:
    """The weight's magnitudes, as F32 bytes."""
    w = FORMATS[inputs["format"]].dequantise(inputs["weight"])
    return np.abs(w).view(np.uint8), "F32"


def cost(shape: Shape, format: str | None) -> Cost:
    tokens, hidden, out = shape["tokens"], shape["hidden"], shape["out"]
    weight = out * FORMATS[format or "F32"].row_bytes(hidden)
    return Cost(weight + 4 * tokens * (hidden + out), 2 * tokens * hidden * out)


SIGNATURE = "x: f32[tokens hidden], weight: format[out hidden] -> out: f32[tokens out]"


OP = Op(
    name="linear",
    reference=linear,
    signature=SIGNATURE,
    axes={
        "tokens": (1, 2, 3, 4, 5, 8, 9, 17, 33),
        "hidden": (31, 33, 127, 129, 256, 257),
        "out": (16, 31, 33, 65, 127, 129, 257),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=tuple(FORMATS),
    fit=whole_blocks,
    # the smallest sizes; more tokens and a larger hidden than a kernel's tile; sizes of models
    corners=(
        {"tokens": 0, "hidden": 33, "out": 5},
        {"tokens": 1, "hidden": 1, "out": 1},
        {"tokens": 3, "hidden": 2, "out": 2},
        {"tokens": 2, "hidden": 2112, "out": 9},
        {"tokens": 67, "hidden": 2112, "out": 33},
        {"tokens": 273, "hidden": 1056, "out": 17},
        {"tokens": 1, "hidden": 14_336, "out": 35},
        {"tokens": 7, "hidden": 11_009, "out": 9},
        {"tokens": 65, "hidden": 14_336, "out": 3},
        {"tokens": 1, "hidden": 65_792, "out": 3},  # more than 256 blocks of 256
        {"tokens": 2, "hidden": 65_792, "out": 3},
        {"tokens": 513, "hidden": 65, "out": 33},
        {"tokens": 1, "hidden": 65, "out": 1000},
        {"tokens": 65, "hidden": 33, "out": 1000},
        {"tokens": 1, "hidden": 32, "out": 65_600},
        {"tokens": 2, "hidden": 32, "out": 65_600},
    ),
    separate="out",
    bounds={name: partial(bound_in_parts, parts=n) for name, n in (("f16x2", 2), ("bf16x3", 3))},
    rounded={"int8": as_int8, "int8_256": as_int8_256, "bf16": as_bf16, "ggml": rounded_by_ggml},
    nan="token",
    largest=FACTOR,
    laws=(
        alone(SIGNATURE, make),
        alone(SIGNATURE, make, "out"),
        contained(SIGNATURE, make),
        scales(make, ("x",), (-1.0, 2.0**10, 2.0**-10)),
        cuts(SIGNATURE, make),
        *LAWS,
    ),
)
