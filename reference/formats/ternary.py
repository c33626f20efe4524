"""TQ1_0 and TQ2_0: x = d (q - 1), blocks of 256 elements of -1, 0 or 1 with one float16 scale d,
for ternary models (BitNet b1.58, Ma et al., arXiv 2402.17764)."""

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

# TQ1_0: five elements a byte in a run of 32, then in a run of 16, then four a byte in a run of 4.
RUNS = ((0, 160, 32), (160, 240, 16), (240, 256, 4))
POWERS = np.array([81, 27, 9, 3, 1], np.uint16)


def _quantised(x: Floats) -> tuple[Floats, Bytes]:
    """d = max|x|, and x / d rounded half away from zero, plus 1."""
    d = np.abs(x).max(axis=1, keepdims=True)
    scaled = x * inverse(d)
    q = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    return d, (q.astype(np.int8) + np.int8(1)).view(np.uint8)


def decode_tq2_0(blocks: Bytes) -> Floats:
    """d * (q - 1), two bits an element."""
    q = unpack(blocks[:, :64], 2, 32)
    return from_halves(blocks[:, 64:]) * (q.view(np.int8) - np.int8(1))


def encode_tq2_0(x: Floats) -> Bytes:
    d, q = _quantised(x)
    return np.concatenate([pack(q, 2, 32), to_halves(d)], axis=1)


def decode_tq1_0(blocks: Bytes) -> Floats:
    """d * (q - 1). A byte is the base-3 number of its digits as a fraction of 256, rounded up:
    digit k is (byte * 3^k mod 256) * 3 / 256."""
    digits, start = [], 0
    for begin, end, run in RUNS:
        count = -(-(end - begin) // (5 * run)) * run
        data = blocks[:, start : start + count].reshape(len(blocks), count // run, 1, run)
        left = data * (3 ** np.arange((end - begin) // count)).astype(np.uint8)[:, None]
        digits.append((left.astype(np.uint16) * 3 >> 8).reshape(len(blocks), end - begin))
        start += count
    q = np.concatenate(digits, axis=1).astype(np.int8) - np.int8(1)
    return from_halves(blocks[:, 52:]) * q


def encode_tq1_0(x: Floats) -> Bytes:
    d, q = _quantised(x)
    packed = []
    for begin, end, run in RUNS:
        per_byte = min(5, (end - begin) // run)
        many = (end - begin) // per_byte
        digits = q[:, begin:end].astype(np.uint16).reshape(len(q), many // run, per_byte, run)
        number = (digits * POWERS[:per_byte, None]).sum(axis=2).reshape(len(q), many)
        packed.append(((number * 256 + 242) // 243).astype(np.uint8))
    return np.concatenate([*packed, to_halves(d)], axis=1)


TQ1_0 = Format("TQ1_0", 34, 256, 54, decode_tq1_0, encode_tq1_0, scaled=scaled_at(52))
TQ2_0 = Format("TQ2_0", 35, 256, 66, decode_tq2_0, encode_tq2_0, scaled=scaled_at(64))
