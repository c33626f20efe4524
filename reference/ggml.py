"""Activations as ggml's products round them, a format of its own for each kind of weight.

Weights in blocks of 32 meet Q8_0: int8 in blocks of 32 with a float16 scale; those that have an
offset, too, meet Q8_1, which keeps scale * sum q in float16 beside it. Weights in blocks of 256
meet Q8_K: int8 in blocks of 256 with a float32 scale. F16 meets F16, BF16 BF16 and F32 F32.
"""

import numpy as np

from reference.bounds import TINY, U, gamma
from reference.formats import FORMATS
from reference.formats.format import Format
from reference.op import Arguments, Array

LARGEST = 2.0**10  # of activations: Q8_1's sum of 32 of them is far below float16's largest number
HALF, LEAST_HALF = 2.0**-11, 2.0**-25  # half a unit of float16's last place, and of its subnormals
TIE = 2.0**-15  # of a step, which x * (127 / max) is off by: at most 127 * 3 U
# Bytes of a block that hold its codes, where these are summed as they are stored and what a code of
# zero stands for is taken off afterwards, by way of sums of activations.
STORED = {"Q6_K": 192, "Q3_K": 96, "TQ1_0": 52, "TQ2_0": 64}
LANES = 32  # of a part, at most: one for each of its elements
DOT = 2.0**27  # beyond 32 products of an int8 activation, a code of a byte and a part's byte


def blocks_of(x: Array, block: int) -> tuple[Array, Array, Array]:
    """Codes, scales, and which codes may as well be one more or less.

    scale = max|x| / 127 in float32, q = x / scale rounded to the nearest integer: of ties either
    way, and ggml's compiled variants differ in how they divide. x float32 [tokens, hidden] -> q
    float64 and undecided bool, both [tokens, blocks, block]; scale float32 [tokens, blocks, 1].
    """
    parts = x.astype(np.float32).reshape(len(x), x.shape[1] // block, block)
    largest = np.abs(parts).max(axis=-1, keepdims=True)
    scale = largest / np.float32(127)
    wide = largest.astype(np.float64)
    steps = np.divide(127.0 * parts, wide, out=np.zeros(parts.shape), where=wide > 0)
    q = np.rint(steps)
    return q, scale, np.abs(np.abs(steps - q) - 0.5) <= TIE


def as_ggml(inputs: Arguments, floats: Array) -> tuple[Arguments, Array, Array]:
    """Of Op.rounded, for weights in blocks: activations in Q8_0, Q8_1 or Q8_K; `floats` is the
    weight, float32 [out, hidden].

    The product is judged against that of the same codes and scales, which is what ggml defines. In
    Q8_1 an offset m of a block meets the sum s, rounded on its own: it is one more column here, in
    which the weight is m and the activation s.

    Whatever vectors a kernel has, products within a part, what shares a scale, are summed as exact
    integers, in as many lanes as it likes: each lane's sum becomes a float, which rounds beyond
    2^24, and is multiplied by the product of two scales; lanes add up part by part (twice, where
    there are offsets) and then each other. So no addend meets more than 2 parts + LANES + 3
    roundings, 3 more where a float32 scale may be the inverse of an inverse, and since lanes of one
    part may cancel, the growth is of sum |w||x|, or, m being an offset or what a code of zero
    stands for, whose sum of activations may be in another lane,

        gamma(2 * parts + LANES + 6) * sum (|w - m| + |m|)|x|.

    Weights of three factors or with an offset are rounded once as they are decoded, the kernel's
    are not: U * sum |w||x|. IQ1's codes and shifts, 1 and 1/8 at most, may be summed apart: 9/7 of
    |w|. A product of scales may be flushed, TINY times a dot. A code that is `undecided` may be one
    more or less, scale * |w|, and then s is rounded elsewhere. Against the float product there is
    half a step of each code, what float16 takes from 127 steps and from s, and all of a block whose
    largest number is so small that it has no inverse.
    """
    layout, x = FORMATS[inputs["format"]], inputs["x"]
    q, scale, undecided = blocks_of(x, layout.block)
    wide, half = scale.astype(np.float64), layout.block == 32
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.isfinite(np.float32(127) / (127 * scale))
    kept = scale.astype(np.float16).astype(np.float64) if half else np.where(inverse, wide, 0.0)
    moved = wide * (0.5 + TIE) + 127 * np.abs(wide - kept)
    moved = np.broadcast_to(np.where(inverse, moved, 128 * wide + TINY), q.shape)
    codes, moved, either = (v.reshape(x.shape) for v in (kept * q, moved, kept * undecided))

    w = floats.astype(np.float64)
    offset = _offset(layout, inputs["weight"], w)
    apart = 9 / 7 if inputs["format"].startswith("IQ1") else 1.0
    inside, outside = apart * np.abs(w - offset), np.abs(offset)  # what is multiplied by codes
    parts = x.shape[1] // layout.part
    rounded = U * (np.abs(codes) @ np.abs(w).T) + DOT * TINY * (2 * parts + 1)
    if not (half and layout.offset):
        size = np.abs(codes) @ (inside + outside).T
        tight = gamma(2 * parts + LANES + 6) * size + rounded + either @ np.abs(w).T
        exact = {**inputs, "x": codes, "weight": _bytes(w), "format": "F32"}
        return exact, np.asarray(tight), np.asarray(moved @ np.abs(w).T)
    sums = (wide * q.sum(axis=-1, keepdims=True))[..., 0]
    s = sums.astype(np.float32).astype(np.float16).astype(np.float64)
    unit, each = HALF * np.abs(sums) + LEAST_HALF, offset[:, :: layout.block]
    size = np.abs(codes) @ inside.T + np.abs(s) @ np.abs(each).T
    others = wide[..., 0] * undecided.sum(axis=-1) + 2 * unit * undecided.any(axis=-1)
    tight = gamma(2 * parts + LANES + 6) * size + rounded
    tight += either @ inside.T + others @ np.abs(each).T
    step = moved @ inside.T + (unit + 32 * wide[..., 0] * (0.5 + TIE)) @ np.abs(each).T
    columns, floats = np.hstack([codes, s]), np.hstack([w - offset, each])
    exact = {**inputs, "x": columns, "weight": _bytes(floats), "format": "F32"}
    return exact, np.asarray(tight), np.asarray(step)


def halves(inputs: Arguments) -> tuple[Arguments, Array]:
    """Of weights in F16: the inputs with activations in float16, and how far that moves the
    product, half a unit of each one's last place."""
    x = inputs["x"].astype(np.float32)
    w = np.abs(FORMATS["F16"].dequantise(inputs["weight"])).astype(np.float64)
    step = (HALF * np.abs(x).astype(np.float64) + LEAST_HALF) @ w.T
    return {**inputs, "x": x.astype(np.float16).astype(np.float32)}, np.asarray(step)


def _offset(layout: Format, weight: Array, w: Array) -> Array:
    """What of each element does not depend on its code, of formats that have that."""
    blocks = np.array(weight).reshape(-1, layout.block_bytes)
    if layout.name in STORED:
        blocks[:, : STORED[layout.name]] = 0
        return layout.decode(blocks).reshape(w.shape).astype(np.float64)
    if layout.offset:
        return layout.offset(blocks).reshape(w.shape).astype(np.float64)
    return np.zeros_like(w)


def _bytes(weight: Array) -> Array:
    """As an F32 weight."""
    return weight.astype(np.float32).view(np.uint8).reshape(len(weight), -1)
