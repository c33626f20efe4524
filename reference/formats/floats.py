"""F32, F16 and BF16: one element a block."""

import numpy as np

from reference.formats.format import Bytes, Floats, Format, scaled_at


def decode_f32(blocks: Bytes) -> Floats:
    return blocks.view(np.float32)


def encode_f32(x: Floats) -> Bytes:
    return x.view(np.uint8)


def decode_f16(blocks: Bytes) -> Floats:
    return blocks.view(np.float16).astype(np.float32)


def encode_f16(x: Floats) -> Bytes:
    """Round to nearest even; magnitudes beyond 65504 round to infinity (IEEE 754)."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).view(np.uint8)


def decode_bf16(blocks: Bytes) -> Floats:
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def encode_bf16(x: Floats) -> Bytes:
    """The upper half of a float32, rounded to nearest even; NaN becomes a quiet NaN."""
    bits = x.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet = (bits >> 16) | 64
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16).view(np.uint8)


F32 = Format("F32", 0, 1, 4, decode_f32, encode_f32)
F16 = Format("F16", 1, 1, 2, decode_f16, encode_f16, scaled=scaled_at(0))
BF16 = Format("BF16", 30, 1, 2, decode_bf16, encode_bf16)
