"""IQ4_NL, IQ4_XS and MXFP4: x = d * table[q], four-bit indices of sixteen non-uniform values."""

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
    to_halves,
)
from reference.formats.scale_search import symmetric, symmetric_parts, symmetric_weights

NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.int8)  # twice the values of FP4
FP4 = np.concatenate([E2M1, -E2M1])
MIDDLES = (NL[:-1].astype(np.float32) + NL[1:]) / np.float32(2)
ENDS = [float(int(end) + step) for end in (NL[0], NL[-1]) for step in range(-7, 8)]


def _index(scaled: Floats) -> Bytes:
    """The index of the nearest value of NL; of two the lower one."""
    return np.searchsorted(MIDDLES, scaled).astype(np.uint8)


def _becomes(scaled: Floats) -> Floats:
    return NL[_index(scaled)].astype(np.float32)


def decode_iq4_nl(blocks: Bytes) -> Floats:
    """d * NL[q], one float16 d for 32 elements."""
    return from_halves(blocks[:, :2]) * NL[unpack(blocks[:, 2:], 4, 16)]


def encode_iq4_nl(x: Floats, importance: Floats | None = None) -> Bytes:
    halves = to_halves(symmetric(x, symmetric_weights(x, importance), ENDS, _becomes)[:, None])
    q = _index(x * inverse(from_halves(halves)))
    return np.concatenate([halves, pack(q, 4, 16)], axis=1)


def decode_iq4_xs(blocks: Bytes) -> Floats:
    """d * (s - 32) * NL[q], 8 parts with scales s of 6 bits: two upper and four lower ones."""
    high, low = unpack(blocks[:, 2:4], 2, 1), unpack(blocks[:, 4:8], 4, 1)
    scale = from_halves(blocks[:, :2]) * ((low | high << 4).view(np.int8) - np.int8(32))
    return by_parts(NL[unpack(blocks[:, 8:], 4, 16)], scale)


def encode_iq4_xs(x: Floats, importance: Floats | None = None) -> Bytes:
    n, parts = len(x), (len(x), 8, 32)
    x = x.reshape(parts)
    weights = symmetric_weights(x, None if importance is None else importance.reshape(parts))
    halves, scales = symmetric_parts(x, weights, 32, ENDS, _becomes)
    q = _index(x * inverse((from_halves(halves) * scales)[..., None])).reshape(n, 256)
    raised = (scales + np.float32(32)).astype(np.uint8)
    return np.concatenate(
        [halves, pack(raised >> 4, 2, 1), pack(raised, 4, 1), pack(q, 4, 16)], axis=1
    )


def _power(exponent: Bytes) -> Floats:
    """2^(exponent - 128), half of the OCP's E8M0 value, since E2M1 holds doubled values."""
    return np.asarray(np.ldexp(np.float32(1), exponent.astype(np.int32) - 128))


def decode_mxfp4(blocks: Bytes) -> Floats:
    """2^(e - 128) * E2M1[q], one byte e for 32 elements (OCP microscaling formats, v1.0)."""
    return np.asarray(_power(blocks[:, :1]) * FP4[unpack(blocks[:, 1:], 4, 16)])


def encode_mxfp4(x: Floats) -> Bytes:
    """e maps the largest magnitude to the last octave of the values; q is the nearest value, the
    first of two equally near."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    exponent = np.where(largest > 0, np.frexp(largest)[1] - 1 - 2 + 127, 0).clip(0, 254)
    e = exponent.astype(np.uint8)
    error = np.abs(_power(e)[..., None] * FP4 - x[..., None])
    return np.concatenate([e, pack(error.argmin(axis=-1), 4, 16)], axis=1)


IQ4_NL = Format(
    "IQ4_NL", 20, 32, 18, decode_iq4_nl, encode_iq4_nl, encode_iq4_nl, scaled=scaled_at(0)
)
IQ4_XS = Format(
    "IQ4_XS", 23, 256, 136, decode_iq4_xs, encode_iq4_xs, encode_iq4_xs, scaled=scaled_at(0)
)
MXFP4 = Format("MXFP4", 39, 32, 17, decode_mxfp4, encode_mxfp4)
