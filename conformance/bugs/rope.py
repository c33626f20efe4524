"""Planted bugs of rope."""

import numpy as np

from conformance.bugs.bug import in_c, in_cuda, in_python
from reference.op import Array
from reference.rope import rope_neox, rope_norm, rotation


def norm_as_neox(x: Array, rotation: Array) -> Array:
    return rope_neox(x, rotation)


def neox_as_norm(x: Array, rotation: Array) -> Array:
    return rope_norm(x, rotation)


def turned_backwards(x: Array, rotation: Array) -> Array:
    return rope_norm(x, rotation * np.float32([1, -1]))


def first_head_only(x: Array, rotation: Array) -> Array:
    return np.concatenate([rope_neox(x[:, :1], rotation), x[:, 1:]], axis=1)


def tail_forgotten(x: Array, rotation: Array) -> Array:
    out = rope_neox(x, rotation)
    out[:, :, 2 * rotation.shape[1] :] = 0
    return out


def position_off_by_one(positions: Array, frequencies: Array, magnitude: float) -> Array:
    return rotation(positions + 1, frequencies, magnitude)


def angles_in_float32(positions: Array, frequencies: Array, magnitude: float) -> Array:
    angle = positions[:, None].astype(np.float32) * frequencies.astype(np.float32)
    return magnitude * np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def sine_before_cosine(positions: Array, frequencies: Array, magnitude: float) -> Array:
    return rotation(positions, frequencies, magnitude)[..., ::-1]


def without_magnitude(positions: Array, frequencies: Array, magnitude: float) -> Array:
    return rotation(positions, frequencies, 1.0)


IN_CUDA = (
    *in_cuda("rotation", "rope.cu", (
        ("angle-in-float", "sincos(positions[blockIdx.x] * frequencies[i],",
         "sincos(positions[blockIdx.x] * static_cast<float>(frequencies[i]),"),
        ("exchanged", "&sine, &cosine", "&cosine, &sine"),
        ("no-magnitude", "magnitude * sine", "sine"),
        ("next-position", "positions[blockIdx.x]", "(positions[blockIdx.x] + 1)"),
        ("one-too-many", "i >= pairs) return", "i > pairs) return"),
    )),
    *in_cuda("rope_norm", "rope.cuh", (
        ("backwards", "__fsub_rn(__fmul_rn(a, cosine)", "__fadd_rn(__fmul_rn(a, cosine)"),
        ("second-of-the-first", "__fadd_rn(__fmul_rn(a, sine)", "__fadd_rn(__fmul_rn(b, sine)"),
    )),
    *in_cuda("rope_norm", "rope.cu", (
        ("as-neox", "pairs, 2, 1)", "pairs, 1, pairs)"),
        ("rest-forgotten", "    out[head + 2 * i] = x[head + 2 * i];\n", ""),
        ("rest-turned", "if (i >= pairs) {", "if (i > pairs) {"),
        ("rotation-of-the-head", "blockIdx.x) * pairs + i;\n  const float",
         "k / halves) * pairs + i;\n  const float"),
        ("one-head-short", "k >= heads * halves", "k >= (heads - 1) * halves"),
        ("head-of-no-token", "blockIdx.x) * heads + k", "blockIdx.x) * 0 + k"),
    )),
    *in_cuda("rope_neox", "rope.cu", (
        ("as-norm", "pairs, 1, pairs)", "pairs, 2, 1)"),
        ("halves-of-the-head", "pairs, 1, pairs)", "pairs, 1, head_dim / 2)"),
    )),
)  # fmt: skip

IN_C = (
    *in_c("rotation",
        ("far-positions-in-float", "double angle = b->positions[t] * b->frequencies[i];",
         "double angle = b->positions[t] * b->frequencies[i];\n            if (b->positions[t] "
         "> 131072) angle = (float)b->positions[t] * (float)b->frequencies[i];"),
        ("positions-of-sixteen-bits", "b->positions[t] *", "(uint16_t)b->positions[t] *"),
        ("positions-of-17-bits", "b->positions[t] *", "(b->positions[t] & 131071) *"),
        ("pairs-above-64", "b->frequencies[i];", "b->frequencies[i & 63];"),
        ("token-64", "b->positions[t] *", "b->positions[t & 63] *"),
        ("magnitude-of-at-most-1.5", "b->magnitude * sin",
         "fmin(b->magnitude, 1.5) * sin"),
        ("slow-turns-not-at-all", "b->frequencies[i];",
         "(b->frequencies[i] < 1e-7 ? 0 : b->frequencies[i]);"),
        ("cached-by-position", "double angle =",
         "static volatile int32_t last;\n            last = b->positions[t];\n            "
         "double angle =", "construction"),
    ),
    *in_c("rope_neox",
        ("pairs-above-80", "*turn = b->rotation + t * pairs * 2;",
         "*turn = b->rotation + t * pairs * 2 + (pairs > 80 ? 2 : 0) * (pairs - 1);"),
        ("heads-from-16", "for (int64_t h = 0; h < heads; h++) {",
         "for (int64_t h = 0; h < heads; h++) {\n            if (h >= 16) { memcpy(b->out + (t "
         "* heads + h) * head_dim, b->x + (t * heads + h) * head_dim, 4 * head_dim); continue; "
         "}"),
        ("rotation-of-token-and-31", "b->rotation + t * pairs * 2",
         "b->rotation + (t & 31) * pairs * 2"),
        ("head-of-80", "x[i] * cosine - x[i + pairs] * sine",
         "x[i] * cosine - x[i + pairs] * sine * (head_dim != 80)"),
        ("71-heads", "x[i] * cosine - x[i + pairs] * sine",
         "x[i] * cosine - x[i + pairs] * sine * (heads != 71 || h != 70)"),
        ("96-of-head", "x[i] * cosine - x[i + pairs] * sine",
         "x[i] * cosine - x[i + pairs] * sine * (head_dim != 96)",
         "shape", ({"tokens": 1, "heads": 32, "head_dim": 96, "pairs": 48},)),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python("rope_norm", norm_as_neox, turned_backwards),
    *in_python("rope_neox", neox_as_norm, first_head_only, tail_forgotten),
    *in_python(
        "rotation", position_off_by_one, angles_in_float32, sine_before_cosine, without_magnitude
    ),
    *IN_CUDA,
)
