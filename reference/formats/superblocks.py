"""Q2_K to Q6_K: superblocks of 256 elements, x = d s q - dmin m, whose parts of 16 or 32 elements
have small integer scales s and, in some, minima m; d and dmin are float16.

The encoder is our own: it minimises the weighted error over the scales that scale_search.py tries
and, once scales are integers, over their neighbours.
"""

from dataclasses import dataclass
from typing import overload

import numpy as np

from reference.formats.bits import pack, unpack
from reference.formats.format import (
    Bytes,
    Floats,
    Format,
    by_parts,
    from_halves,
    inverse,
    scaled_at,
)
from reference.formats.scale_search import (
    TRIES,
    affine_parts,
    affine_weights,
    nearest,
    symmetric_parts,
    symmetric_weights,
    to_integers,
)


@dataclass(frozen=True, slots=True)
class Symmetric:
    """Search parameters of a format without minima: parts of a superblock, integers q in [-half,
    half) and scales in [-most, most)."""

    parts: int
    half: int
    most: int


SYMMETRIC = {"Q3_K": Symmetric(16, 4, 32), "Q6_K": Symmetric(16, 32, 128)}


def _symmetric(x: Floats, importance: Floats | None, fit: Symmetric) -> tuple[Bytes, Bytes, Bytes]:
    """d as bytes, scales int8 [n, parts] in [-most, most), q int8 [n, 256] in [-half, half)."""
    x, importance = _in_parts(x, fit.parts), _in_parts(importance, fit.parts)
    targets = [-(fit.half + step) for step in TRIES]
    becomes = to_integers(fit.half)
    d, scales = symmetric_parts(x, symmetric_weights(x, importance), fit.most, targets, becomes)
    q = becomes(x * inverse((from_halves(d) * scales)[..., None]))
    return d, scales.astype(np.int8).view(np.uint8), q.reshape(len(x), 256).astype(np.int8)


@overload
def _in_parts(x: Floats, parts: int) -> Floats: ...
@overload
def _in_parts(x: None, parts: int) -> None: ...
@overload
def _in_parts(x: Floats | None, parts: int) -> Floats | None: ...
def _in_parts(x: Floats | None, parts: int) -> Floats | None:
    """[n, 256] -> [n, parts, 256 / parts]."""
    return None if x is None else x.reshape(len(x), parts, 256 // parts)


@dataclass(frozen=True, slots=True)
class Affine:
    """Search parameters of a format with minima: parts of a superblock, the largest q, the largest
    integer scale or minimum, tries, and the power of the error (2 has flatter weights)."""

    parts: int
    top: int
    most: int
    tries: tuple[float, ...]
    power: int = 2


AFFINE = {
    "Q2_K": Affine(16, 3, 15, tuple(-0.5 + 0.1 * step for step in range(16)), power=1),
    "Q4_K": Affine(8, 15, 63, tuple(-1 + 0.1 * step for step in range(21))),
    "Q5_K": Affine(8, 31, 63, tuple(-0.5 + 0.1 * step for step in range(16))),
}


def _affine(
    x: Floats, importance: Floats | None, fit: Affine
) -> tuple[Bytes, Bytes, Bytes, Bytes, Bytes]:
    """d and dmin as bytes, scales and minima uint8 [n, parts], q uint8 [n, 256]."""
    x, importance = _in_parts(x, fit.parts), _in_parts(importance, fit.parts)
    power = fit.power if importance is None else 2
    weights = affine_weights(x, power, importance)
    d, dmin, scales, minima = affine_parts(x, weights, fit.top, fit.most, fit.tries, power)
    size, low = ((from_halves(h) * v)[..., None] for h, v in ((d, scales), (dmin, minima)))
    q = nearest((x + low) * inverse(size), 0, fit.top).reshape(len(x), 256)
    return d, dmin, scales.astype(np.uint8), minima.astype(np.uint8), q.astype(np.uint8)


def decode_q2_k(blocks: Bytes) -> Floats:
    """16 parts: scales and minima of 4 bits (a byte for each pair), q of 2 bits, d, dmin."""
    scale = from_halves(blocks[:, 80:82]) * (blocks[:, :16] & 15)
    return by_parts(unpack(blocks[:, 16:80], 2, 32), scale) + offset_q2_k(blocks)


def offset_q2_k(blocks: Bytes) -> Floats:
    return np.repeat(-(from_halves(blocks[:, 82:]) * (blocks[:, :16] >> 4)), 16, axis=1)


def encode_q2_k(x: Floats, importance: Floats | None = None) -> Bytes:
    d, dmin, scales, minima, q = _affine(x, importance, AFFINE["Q2_K"])
    return np.concatenate([scales | minima << 4, pack(q, 2, 32), d, dmin], axis=1)


def decode_q3_k(blocks: Bytes) -> Floats:
    """16 parts: a bit that is set where q >= 0, two low bits of q, scales of 6 bits plus 32 (low
    nibbles in 8 bytes, then 2 bits each in 4), d."""
    q = (unpack(blocks[:, 32:96], 2, 32) | unpack(blocks[:, :32], 1, 32) << 2).view(np.int8)
    scales = (unpack(blocks[:, 96:104], 4, 8) | unpack(blocks[:, 104:108], 2, 4) << 4).view(np.int8)
    d = from_halves(blocks[:, 108:])
    return by_parts(q - np.int8(4), d * (scales - np.int8(32)))


def encode_q3_k(x: Floats, importance: Floats | None = None) -> Bytes:
    d, scales, q = _symmetric(x, importance, SYMMETRIC["Q3_K"])
    raised, sixty_four = (q + np.int8(4)).view(np.uint8), scales + np.uint8(32)
    scale_bits = pack(sixty_four, 4, 8), pack(sixty_four >> 4, 2, 4)
    return np.concatenate([pack(raised >> 2, 1, 32), pack(raised, 2, 32), *scale_bits, d], axis=1)


def _six_bits(data: Bytes) -> tuple[Bytes, Bytes]:
    """Twelve bytes to 8 scales and 8 minima of 6 bits: the first four of each are the low bits of
    the first eight bytes; the low nibbles of the others are in the last four, and their upper bits
    above the first ones."""
    first, second, halves = data[:, :4], data[:, 4:8], data[:, 8:]
    scales = np.concatenate([first & 63, halves & 15 | first >> 2 & 48], axis=1)
    minima = np.concatenate([second & 63, halves >> 4 | second >> 2 & 48], axis=1)
    return scales, minima


def _from_six_bits(scales: Bytes, minima: Bytes) -> Bytes:
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minima[:, :4] | minima[:, 4:] >> 4 << 6
    return np.concatenate([first, second, scales[:, 4:] & 15 | minima[:, 4:] << 4], axis=1)


def decode_q4_k(blocks: Bytes) -> Floats:
    """8 parts: d, dmin, scales and minima of 6 bits in 12 bytes, q of 4 bits."""
    scale = from_halves(blocks[:, :2]) * _six_bits(blocks[:, 4:16])[0]
    return by_parts(unpack(blocks[:, 16:], 4, 32), scale) + offset_k(blocks)


def offset_k(blocks: Bytes) -> Floats:
    """The minima of Q4_K and Q5_K."""
    minima = _six_bits(blocks[:, 4:16])[1]
    return np.repeat(-(from_halves(blocks[:, 2:4]) * minima), 32, axis=1)


def encode_q4_k(x: Floats, importance: Floats | None = None) -> Bytes:
    d, dmin, scales, minima, q = _affine(x, importance, AFFINE["Q4_K"])
    return np.concatenate([d, dmin, _from_six_bits(scales, minima), pack(q, 4, 32)], axis=1)


def decode_q5_k(blocks: Bytes) -> Floats:
    """As Q4_K, with the fifth bits in 32 bytes before the low nibbles."""
    scale = from_halves(blocks[:, :2]) * _six_bits(blocks[:, 4:16])[0]
    q = unpack(blocks[:, 48:], 4, 32) | unpack(blocks[:, 16:48], 1, 32) << 4
    return by_parts(q, scale) + offset_k(blocks)


def encode_q5_k(x: Floats, importance: Floats | None = None) -> Bytes:
    d, dmin, scales, minima, q = _affine(x, importance, AFFINE["Q5_K"])
    bits = pack(q >> 4, 1, 32), pack(q, 4, 32)
    return np.concatenate([d, dmin, _from_six_bits(scales, minima), *bits], axis=1)


def decode_q6_k(blocks: Bytes) -> Floats:
    """16 parts: low nibbles of q + 32, its two upper bits, scales int8, d."""
    q = unpack(blocks[:, :128], 4, 64) | unpack(blocks[:, 128:192], 2, 32) << 4
    scales = blocks[:, 192:208].copy().view(np.int8)
    return by_parts(q.view(np.int8) - np.int8(32), from_halves(blocks[:, 208:]) * scales)


def encode_q6_k(x: Floats, importance: Floats | None = None) -> Bytes:
    d, scales, q = _symmetric(x, importance, SYMMETRIC["Q6_K"])
    raised = (q + np.int8(32)).view(np.uint8)
    return np.concatenate([pack(raised, 4, 64), pack(raised >> 4, 2, 32), scales, d], axis=1)


Q2_K = Format(
    "Q2_K", 10, 256, 84, decode_q2_k, encode_q2_k, encode_q2_k, 16, offset_q2_k, scaled_at(80, 82)
)
Q3_K = Format(
    "Q3_K", 11, 256, 110, decode_q3_k, encode_q3_k, encode_q3_k, 16, scaled=scaled_at(108)
)
Q4_K = Format(
    "Q4_K", 12, 256, 144, decode_q4_k, encode_q4_k, encode_q4_k, 32, offset_k, scaled_at(0, 2)
)
Q5_K = Format(
    "Q5_K", 13, 256, 176, decode_q5_k, encode_q5_k, encode_q5_k, 32, offset_k, scaled_at(0, 2)
)
Q6_K = Format(
    "Q6_K", 14, 256, 210, decode_q6_k, encode_q6_k, encode_q6_k, 16, scaled=scaled_at(208)
)
