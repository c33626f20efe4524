"""Activations as ggml's matrix products quantise them, in a format for each kind of weight.

For weights in blocks of 32 it is Q8_0, int8 in blocks of 32 with a float16 scale; if they have an
offset, Q8_1, which adds scale * sum q in float16. For weights in blocks of 256 it is Q8_K, int8 in
blocks of 256 with a float32 scale. F16 is multiplied with F16, BF16 with BF16, F32 with F32.
"""

import numpy as np

from reference.bounds import TINY, U, gamma
from reference.formats import FORMATS
from reference.formats.format import Format
from reference.op import Arguments, Array

LARGEST = 2.0**10  # of activations: Q8_1's sum of 32 of them stays far below 65504
HALF, LEAST_HALF = 2.0**-11, 2.0**-25  # float16's unit roundoff, of subnormals too
TIE = 2.0**-15  # of a step: exceeds the error of x * (127 / max), at most 127 * 3 U
# Bytes of a block that hold its codes, in formats whose codes are summed as stored; the value of
# code zero is subtracted afterwards, times sums of activations.
STORED = {"Q6_K": 192, "Q3_K": 96, "TQ1_0": 52, "TQ2_0": 64}
LANES = 32  # at most one for each element of a part
DOT = 2.0**27  # exceeds 32 products of an int8 activation, a code's byte and a part's byte


def blocks_of(x: Array, block: int) -> tuple[Array, Array, Array]:
    """Codes, scales, and which codes may also differ by one.

    scale = max|x| / 127 in float32, q = x / scale rounded to the nearest integer; ties may go
    either way, since ggml's compiled variants divide differently. x float32 [tokens, hidden] -> q
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
    """Op.rounded for weights in blocks: activations in Q8_0, Q8_1 or Q8_K; `floats` is the weight,
    float32 [out, hidden].

    The product is judged against that of the same codes and scales, which is ggml's definition. In
    Q8_1 the offset m of a block is multiplied by the sum s, rounded separately: here it is one more
    column, with the weight m and the activation s.

    In any vectorisation, products within a part, the elements that share a scale, are summed as
    exact integers in some number of lanes: each lane's sum is converted to float, which rounds
    beyond 2^24, and multiplied by the product of two scales; lanes accumulate part by part (twice,
    with offsets) and are then added up. So no term has more than 2 parts + LANES + 3 roundings, 3
    more if a float32 scale is the inverse of an inverse. Lanes of one part may cancel, so the error
    is relative to sum |w||x| or, with an offset or code zero's value m, whose sum of activations
    may be in another lane,

        gamma(2 * parts + LANES + 6) * sum (|w - m| + |m|)|x|.

    Weights of three factors or with an offset are rounded once when decoded, the kernel's are not:
    U * sum |w||x|. IQ1's codes and shifts, 1 and 1/8 at most, may be summed separately: 9/7 of |w|.
    A product of scales may be flushed, TINY times a dot product. An `undecided` code may differ by
    one, scale * |w|, and then s is rounded differently. The distance from the float product is half
    a step for each code, the rounding of 127 steps and of s to float16, and a whole block if its
    largest number is too small to have an inverse.
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
    inside, outside = apart * np.abs(w - offset), np.abs(offset)  # the factors of codes and of sums
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
    """For F16 weights: the inputs with activations in float16, and the bound on how far that moves
    the product, half a unit in the last place of each activation."""
    x = inputs["x"].astype(np.float32)
    w = np.abs(FORMATS["F16"].dequantise(inputs["weight"])).astype(np.float64)
    step = (HALF * np.abs(x).astype(np.float64) + LEAST_HALF) @ w.T
    return {**inputs, "x": x.astype(np.float16).astype(np.float32)}, np.asarray(step)


def _offset(layout: Format, weight: Array, w: Array) -> Array:
    """The value that each element adds to its code's product, in formats that have one."""
    blocks = np.array(weight).reshape(-1, layout.block_bytes)
    if layout.name in STORED:
        blocks[:, : STORED[layout.name]] = 0
        return layout.decode(blocks).reshape(w.shape).astype(np.float64)
    if layout.offset:
        return layout.offset(blocks).reshape(w.shape).astype(np.float64)
    return np.zeros_like(w)


def _bytes(weight: Array) -> Array:
    """The weight as bytes of F32."""
    return weight.astype(np.float32).view(np.uint8).reshape(len(weight), -1)
