"""IQ1 to IQ3: superblocks of 256 elements, in which an index names a group of values in a grid.

x = d s g / 8 with a float16 d, an odd integer scale s for each part, and grid values g, exact in
float32. In IQ2 and IQ3 an index names magnitudes, whose signs are stored separately; in IQ1 it
names values of -1, 0 and 1, all of which are shifted by an eighth up or down.

These formats are read-only: quantising to them requires an importance matrix.
"""

import numpy as np

from reference.formats import grids
from reference.formats.bits import unpack
from reference.formats.format import (
    Bytes,
    Floats,
    Format,
    Integers,
    by_parts,
    from_halves,
    scaled_at,
    to_halves,
)

EIGHTH = np.float32(1 / 8)
QUARTERS = np.array([0, 4, 8, 12], np.uint16)  # bit offsets of the four nibbles of IQ1_M's d
# Seven signs, and an eighth that makes the number of negative ones even.
EVEN_SIGNS = np.array([i | i.bit_count() % 2 << 7 for i in range(128)], np.uint8)


def _words(data: Bytes, kind: type) -> Integers:
    """uint8 [n, bytes] -> [n, words], little-endian."""
    return np.ascontiguousarray(data).view(kind)


def _four(words: Integers, bits: int) -> Integers:
    """The lowest four fields of each word, [..., words] -> [..., words, 4]."""
    shifts = np.arange(0, 4 * bits, bits).astype(words.dtype)
    return np.asarray(words[..., None] >> shifts & words.dtype.type((1 << bits) - 1))


def _signed(magnitudes: Integers, signs: Bytes) -> Integers:
    """Groups of magnitudes, negative where bits of uint8 [n, 32] are set -> int8 [n, 256]."""
    values = magnitudes.reshape(len(signs), 256)
    return np.where(unpack(signs, 1, 1) == 1, -values, values)


def _odd(scales: Integers) -> Floats:
    return (2 * scales + 1).astype(np.float32)


def _signs_and_scale(data: Bytes) -> tuple[Bytes, Floats]:
    """Eight words of four times seven signs and a scale of 4 bits: uint8 [n, 32], odd [n, 8]."""
    words = _words(data, np.uint32)
    return EVEN_SIGNS[_four(words, 7)].reshape(len(data), 32), _odd(words >> 28)


def decode_iq2_xxs(blocks: Bytes) -> Floats:
    """8 parts of eight bytes: four indices, four times seven signs, a scale of 4 bits."""
    parts = blocks[:, 2:].reshape(len(blocks), 8, 8)
    signs, scale = _signs_and_scale(parts[..., 4:].reshape(len(blocks), 32))
    q = _signed(grids.IQ2_XXS[parts[..., :4]], signs)
    return by_parts(q, from_halves(blocks[:, :2]) * scale * EIGHTH)


def decode_iq2_xs(blocks: Bytes) -> Floats:
    """32 words of an index of 9 bits and seven signs, then 16 scales of 4 bits."""
    words = _words(blocks[:, 2:66], np.uint16)
    q = _signed(grids.IQ2_XS[words & 511], EVEN_SIGNS[words >> 9])
    scale = _odd(unpack(blocks[:, 66:], 4, 1))
    return by_parts(q, from_halves(blocks[:, :2]) * scale * EIGHTH)


def decode_iq2_s(blocks: Bytes) -> Floats:
    """32 indices of 10 bits, the upper two in bytes of their own; signs; 16 scales of 4 bits."""
    index = blocks[:, 2:34] | unpack(blocks[:, 66:74], 2, 1).astype(np.uint16) << 8
    scale = _odd(unpack(blocks[:, 74:], 4, 1))
    q = _signed(grids.IQ2_S[index], blocks[:, 34:66])
    return by_parts(q, from_halves(blocks[:, :2]) * scale * EIGHTH)


def decode_iq3_xxs(blocks: Bytes) -> Floats:
    """64 indices, then for each of 8 parts four times seven signs and a scale of 4 bits."""
    signs, scale = _signs_and_scale(blocks[:, 66:])
    q = _signed(grids.IQ3_XXS[blocks[:, 2:66]], signs)
    return by_parts(q, from_halves(blocks[:, :2]) * scale * EIGHTH)


def decode_iq3_s(blocks: Bytes) -> Floats:
    """64 indices of 9 bits, the uppermost in bytes of their own; signs; 8 scales of 4 bits."""
    index = blocks[:, 2:66] | unpack(blocks[:, 66:74], 1, 1).astype(np.uint16) << 8
    scale = _odd(unpack(blocks[:, 106:], 4, 1))
    q = _signed(grids.IQ3_S[index], blocks[:, 74:106])
    return by_parts(q, from_halves(blocks[:, :2]) * scale * EIGHTH)


def _moved(index: Integers, down: Integers) -> Integers:
    """IQ1's values of 32 groups, plus or, where `down`, minus an eighth: int8 [n, 256]."""
    step = np.where(down, np.int8(-1), np.int8(1))
    return (grids.IQ1[index] + step[..., None]).reshape(len(index), 256)


def decode_iq1_s(blocks: Bytes) -> Floats:
    """32 indices of 11 bits; for each of 8 parts a word with their upper bits, a scale of 3 bits
    and the sign of the shift."""
    words = _words(blocks[:, 34:], np.uint16)
    index = blocks[:, 2:34] | _four(words, 3).reshape(len(blocks), 32) << 8
    scale = _odd(words >> 12 & 7)
    q = _moved(index, np.repeat(words >> 15, 4, axis=1))
    return by_parts(q, from_halves(blocks[:, :2]) * scale * EIGHTH)


def decode_iq1_m(blocks: Bytes) -> Floats:
    """32 indices of 11 bits, whose upper bits share a nibble with the sign of the group's shift;
    four words of four scales of 3 bits and a nibble of d."""
    nibbles = unpack(blocks[:, 32:48], 4, 1)
    q = _moved(blocks[:, :32] | (nibbles & np.uint8(7)).astype(np.uint16) << 8, nibbles >> 3)
    words = _words(blocks[:, 48:], np.uint16)
    d = np.bitwise_or.reduce(words >> 12 << QUARTERS, axis=1, keepdims=True).view(np.float16)
    scale = _odd(_four(words, 3).reshape(len(blocks), 16))
    return by_parts(q, d.astype(np.float32) * scale * EIGHTH)


def scaled_iq1_m(blocks: Bytes, scales: Floats) -> Bytes:
    quarters = _words(to_halves(scales[:, :1]), np.uint16) >> QUARTERS << 12
    words = _words(blocks[:, 48:], np.uint16) & 0xFFF | quarters
    return np.concatenate([blocks[:, :48], words.view(np.uint8)], axis=1)


IQ2_XXS = Format("IQ2_XXS", 16, 256, 66, decode_iq2_xxs, scaled=scaled_at(0))
IQ2_XS = Format("IQ2_XS", 17, 256, 74, decode_iq2_xs, part=16, scaled=scaled_at(0))
IQ3_XXS = Format("IQ3_XXS", 18, 256, 98, decode_iq3_xxs, scaled=scaled_at(0))
IQ1_S = Format("IQ1_S", 19, 256, 50, decode_iq1_s, scaled=scaled_at(0))
IQ3_S = Format("IQ3_S", 21, 256, 110, decode_iq3_s, scaled=scaled_at(0))
IQ2_S = Format("IQ2_S", 22, 256, 82, decode_iq2_s, part=16, scaled=scaled_at(0))
IQ1_M = Format("IQ1_M", 29, 256, 56, decode_iq1_m, part=16, scaled=scaled_iq1_m)
