"""Q4_0 and Q8_0: blocks of 32 elements with one float16 scale d (ggml's first quantised formats).

Arithmetic is float32 on purpose: it defines which integer an element becomes, and files written by
llama.cpp and the `gguf` package agree bit for bit.
"""

import numpy as np

from reference.formats.format import Bytes, Floats, Format


def _split(blocks: Bytes) -> tuple[Floats, Bytes]:
    """The scale d as float32 [blocks, 1], and the remaining bytes."""
    return blocks[:, :2].copy().view(np.float16).astype(np.float32), blocks[:, 2:]


def _join(d: Floats, rest: Bytes) -> Bytes:
    with np.errstate(over="ignore"):
        return np.concatenate([d.astype(np.float16).view(np.uint8), rest], axis=1)


def _inverse(d: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.where(d == 0, np.float32(0), np.float32(1) / d)


def decode_q8_0(blocks: Bytes) -> Floats:
    """d * q, q an int8."""
    d, q = _split(blocks)
    return d * q.view(np.int8)


def encode_q8_0(x: Floats) -> Bytes:
    """d = max|x| / 127; q = x / d rounded half away from zero."""
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(d)
    q = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    return _join(d, q.astype(np.int8).view(np.uint8))


def decode_q4_0(blocks: Bytes) -> Floats:
    """d * (q - 8); byte j holds element j in its low half and j + 16 in its high one."""
    d, packed = _split(blocks)
    q = np.concatenate([packed & 15, packed >> 4], axis=1)
    return d * (q.astype(np.int8) - np.int8(8))


def encode_q4_0(x: Floats) -> Bytes:
    """d = (the value of largest magnitude) / -8; q = min(15, trunc(x / d + 8.5))."""
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    d = extreme / np.float32(-8)
    q = np.trunc(x * _inverse(d) + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    return _join(d, q[:, :16] | q[:, 16:] << 4)


Q4_0 = Format("Q4_0", 2, 32, 18, decode_q4_0, encode_q4_0)
Q8_0 = Format("Q8_0", 8, 32, 34, decode_q8_0, encode_q8_0)
