"""ggml's formats Q8_0, Q4_0, Q5_0, Q4_1, Q5_1: blocks of 32 elements, x = d q or x = d q + m.

d and m are float16. Arithmetic is float32 by definition: it fixes the integers, and files written
by llama.cpp and the `gguf` package agree bit for bit.
"""

import numpy as np

from reference.formats.bits import pack, unpack
from reference.formats.format import (
    Bytes,
    Floats,
    Format,
    from_halves,
    inverse,
    scaled_at,
    to_halves,
)
from reference.formats.scale_search import (
    FINER,
    TRIES,
    affine,
    importance_weights,
    nearest,
    symmetric,
    to_integers,
)


def decode_q8_0(blocks: Bytes) -> Floats:
    """d * q, with int8 q."""
    return from_halves(blocks[:, :2]) * blocks[:, 2:].view(np.int8)


def encode_q8_0(x: Floats) -> Bytes:
    """d = max|x| / 127; q = x / d rounded half away from zero."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * inverse(d)
    q = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    return np.concatenate([to_halves(d), q.astype(np.int8).view(np.uint8)], axis=1)


def decode_q4_0(blocks: Bytes) -> Floats:
    """d * (q - 8); byte j holds element j in its low nibble and j + 16 in its high one."""
    q = unpack(blocks[:, 2:], 4, 16)
    return from_halves(blocks[:, :2]) * (q.view(np.int8) - np.int8(8))


def encode_q4_0(x: Floats) -> Bytes:
    """d = (the value of largest magnitude) / -8; q = min(15, trunc(x / d + 8.5))."""
    d, q = _from_extreme(x, 8)
    return np.concatenate([to_halves(d), pack(q, 4, 16)], axis=1)


def search_q4_0(x: Floats, importance: Floats) -> Bytes:
    d, q = _search_extreme(x, importance, 8)
    return np.concatenate([d, pack(q, 4, 16)], axis=1)


def decode_q5_0(blocks: Bytes) -> Floats:
    """d * (q - 16); four bytes hold the fifth bits, followed by the low nibbles as in Q4_0."""
    q = unpack(blocks[:, 6:], 4, 16) | unpack(blocks[:, 2:6], 1, 1) << 4
    return from_halves(blocks[:, :2]) * (q.view(np.int8) - np.int8(16))


def encode_q5_0(x: Floats) -> Bytes:
    """d = (the value of largest magnitude) / -16; q = min(31, trunc(x / d + 16.5))."""
    d, q = _from_extreme(x, 16)
    return np.concatenate([to_halves(d), pack(q >> 4, 1, 1), pack(q, 4, 16)], axis=1)


def search_q5_0(x: Floats, importance: Floats) -> Bytes:
    d, q = _search_extreme(x, importance, 16)
    return np.concatenate([d, pack(q >> 4, 1, 1), pack(q, 4, 16)], axis=1)


def _from_extreme(x: Floats, half: int) -> tuple[Floats, Bytes]:
    """The scale d = (element of largest magnitude) / -half, and the integers plus half."""
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    d = extreme / np.float32(-half)
    q = np.trunc(x * inverse(d) + np.float32(half + 0.5))
    return d, q.astype(np.uint8).clip(0, 2 * half - 1)


def _search_extreme(x: Floats, importance: Floats, half: int) -> tuple[Bytes, Bytes]:
    """d as bytes, of the smallest weighted error, and the integers plus half."""
    becomes = to_integers(half)
    targets = [-(half + step) for step in TRIES]
    d = to_halves(symmetric(x, importance_weights(x, importance), targets, becomes)[:, None])
    return d, (becomes(x * inverse(from_halves(d))) + np.float32(half)).astype(np.uint8)


def decode_q4_1(blocks: Bytes) -> Floats:
    """d * q + m."""
    q = unpack(blocks[:, 4:], 4, 16).astype(np.float32)
    return from_halves(blocks[:, :2]) * q + offset_1(blocks)


def offset_1(blocks: Bytes) -> Floats:
    """m of Q4_1 and Q5_1."""
    return np.repeat(from_halves(blocks[:, 2:4]), 32, axis=1)


def encode_q4_1(x: Floats) -> Bytes:
    """m = min x, d = (max x - m) / 15; q = min(15, trunc((x - m) / d + 0.5))."""
    d, m, q = _from_range(x, 15)
    return np.concatenate([to_halves(d), to_halves(m), pack(q, 4, 16)], axis=1)


def search_q4_1(x: Floats, importance: Floats) -> Bytes:
    d, m, q = _search_range(x, importance, 15)
    return np.concatenate([d, m, pack(q, 4, 16)], axis=1)


def decode_q5_1(blocks: Bytes) -> Floats:
    """d * q + m, with the fifth bits in four bytes before the low nibbles."""
    q = unpack(blocks[:, 8:], 4, 16) | unpack(blocks[:, 4:8], 1, 1) << 4
    return from_halves(blocks[:, :2]) * q.astype(np.float32) + offset_1(blocks)


def encode_q5_1(x: Floats) -> Bytes:
    """m = min x, d = (max x - m) / 31; q = min(31, trunc((x - m) / d + 0.5))."""
    d, m, q = _from_range(x, 31)
    halves = to_halves(d), to_halves(m)
    return np.concatenate([*halves, pack(q >> 4, 1, 1), pack(q, 4, 16)], axis=1)


def search_q5_1(x: Floats, importance: Floats) -> Bytes:
    d, m, q = _search_range(x, importance, 31)
    return np.concatenate([d, m, pack(q >> 4, 1, 1), pack(q, 4, 16)], axis=1)


def _from_range(x: Floats, top: int) -> tuple[Floats, Floats, Bytes]:
    """The scale and minimum that map a block's range to 0 .. top, and the integers."""
    zero = np.float32(0)  # adding it turns -0 into +0
    m = x.min(axis=1, keepdims=True) + zero
    d = (x.max(axis=1, keepdims=True) - m) / np.float32(top) + zero
    q = np.trunc((x - m) * inverse(d) + np.float32(0.5))
    return d, m, q.astype(np.uint8).clip(0, top)


def _search_range(x: Floats, importance: Floats, top: int) -> tuple[Bytes, Bytes, Bytes]:
    """d and m as bytes, of the smallest weighted error, and the integers."""
    scale, minimum = affine(x, importance_weights(x, importance), top, FINER, 2)
    d, m = to_halves(scale[:, None]), to_halves(np.float32(0) - minimum[:, None])
    q = nearest((x - from_halves(m)) * inverse(from_halves(d)), 0, top)
    return d, m, q.astype(np.uint8)


D, D_AND_M = scaled_at(0), scaled_at(0, 2)
Q4_0 = Format("Q4_0", 2, 32, 18, decode_q4_0, encode_q4_0, search_q4_0, scaled=D)
Q4_1 = Format(
    "Q4_1", 3, 32, 20, decode_q4_1, encode_q4_1, search_q4_1, offset=offset_1, scaled=D_AND_M
)
Q5_0 = Format("Q5_0", 6, 32, 22, decode_q5_0, encode_q5_0, search_q5_0, scaled=D)
Q5_1 = Format(
    "Q5_1", 7, 32, 24, decode_q5_1, encode_q5_1, search_q5_1, offset=offset_1, scaled=D_AND_M
)
Q8_0 = Format("Q8_0", 8, 32, 34, decode_q8_0, encode_q8_0, scaled=D)
