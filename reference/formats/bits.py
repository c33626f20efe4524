"""Pack and unpack fields of a few bits in bytes, in the order that all block formats share."""

import numpy as np

from reference.formats.format import Bytes, Integers


def unpack(data: Bytes, bits: int, run: int) -> Bytes:
    """uint8 [n, bytes] -> uint8 [n, bytes * 8 / bits].

    Bytes form runs: the lowest fields of all bytes of a run come first, then the next ones.
    """
    shifts = np.arange(0, 8, bits).astype(np.uint8)[:, None]
    n, size = data.shape
    fields = data.reshape(n, size // run, 1, run) >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(fields.reshape(n, size * 8 // bits))


def pack(fields: Integers, bits: int, run: int) -> Bytes:
    """The inverse of `unpack`; only the low bits of a field are stored."""
    shifts, (n, count) = np.arange(0, 8, bits).astype(np.uint8)[:, None], fields.shape
    kept = fields.astype(np.uint8) & np.uint8((1 << bits) - 1)
    runs = kept.reshape(n, count * bits // (8 * run), 8 // bits, run) << shifts
    return np.asarray(np.bitwise_or.reduce(runs, axis=2).reshape(n, count * bits // 8))
