"""Weight formats inside compiled code: one tag per format, and elements decoded by tag.

`element` serves every kernel that reads the file's own layout one element at a time; fast kernels
stream packed layouts, which packing.py makes with the same CODINGS.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import models, overload, register_model

from kernels.cpu.formats import grid_formats
from kernels.cpu.isa.bits import field, half_at
from kernels.cpu.isa.simd import bf16x1, convert, extract, f32x1, load
from reference.formats import FORMATS
from reference.formats.codebooks import FP4, NL


class FormatTag(types.Type):
    """A weight format as a compile-time argument."""

    def __init__(self, format: str) -> None:
        self.format = format
        super().__init__(name=f"format.{format}")


register_model(FormatTag)(models.OpaqueModel)

TAGS = {name: FormatTag(name) for name in FORMATS}


@dataclass(frozen=True, slots=True)
class Coding:
    """How the elements of a block format are coded: scale * integer, perhaps plus an offset, the
    scale being d, perhaps times a part's integer and a power of two.

    Functions take the bytes of a row, where the block begins, and which of its elements is meant.

    - `integer`: the element's.
    - `d`: byte of the block at which its float16 d stands; `scale` instead gives it as a float32.
    - `part`: the integer that multiplies d for the element's part of the block; `factor`: the power
      of two that does for all of them.
    - `m`: byte of a float16 that is the offset; with `minimum`, minus it times that integer is.
    """

    integer: Callable[..., Any]
    d: int = 0
    part: Callable[..., Any] | None = None
    m: int | None = None
    minimum: Callable[..., Any] | None = None
    scale: Callable[..., Any] | None = None
    factor: float = 1.0

    def d_at(self) -> Any:
        """A compiled function of (data, base, j)."""
        at = self.d
        if self.scale:
            return self.scale
        return njit(inline="always")(lambda data, base, _j: half_at(data, base + at))

    def scale_at(self) -> Any:
        """A compiled function of (data, base, j)."""
        d, part, factor = self.d_at(), self.part, np.float32(self.factor)
        if part:
            return njit(inline="always")(
                lambda data, base, j: d(data, base, j) * factor * np.float32(part(data, base, j))
            )
        return d

    def offset_at(self) -> Any:
        """A compiled function of (data, base, j); None where there is no offset."""
        at, minimum = self.m, self.minimum
        if at is None:
            return None
        if minimum:
            return njit(inline="always")(
                lambda data, base, j: (
                    -(half_at(data, base + at) * np.float32(minimum(data, base, j)))
                )
            )
        return njit(inline="always")(lambda data, base, _j: half_at(data, base + at))

    def parts_at(self) -> tuple[Any, Any]:
        """Compiled functions of (data, base, j): a part's integer scale, and its min's; 0 where
        there are none."""
        return self.part or nothing, self.minimum or nothing


@njit(inline="always")
def nothing(data, base, j):
    return 0


def code_at(integer: Any, values: tuple[int, ...], zero_point: int) -> Any:
    """A compiled function of (data, base, j): an element's integer plus the zero point, or its
    index among these values, if there are any."""
    table = np.array(values, np.int32)

    @njit(inline="always")
    def code_of(data, base, j):
        value = integer(data, base, j)
        if not len(table):
            return value + zero_point
        code = 0
        while table[code] != value:
            code += 1
        return code

    return code_of


@njit(inline="always")
def q4_0(data, base, j):
    return field(data, base + 2, j, 4, 16) - 8


@njit(inline="always")
def q4_1(data, base, j):
    return field(data, base + 4, j, 4, 16)


@njit(inline="always")
def q5_0(data, base, j):
    return (field(data, base + 6, j, 4, 16) | field(data, base + 2, j, 1, 1) << 4) - 16


@njit(inline="always")
def q5_1(data, base, j):
    return field(data, base + 8, j, 4, 16) | field(data, base + 4, j, 1, 1) << 4


@njit(inline="always")
def q8_0(data, base, j):
    return np.int32(np.int8(data[base + 2 + j]))


@njit(inline="always")
def q2_k(data, base, j):
    return field(data, base + 16, j, 2, 32)


@njit(inline="always")
def q2_k_part(data, base, j):
    return np.int32(data[base + j // 16]) & 15


@njit(inline="always")
def q2_k_min(data, base, j):
    return np.int32(data[base + j // 16]) >> 4


@njit(inline="always")
def q3_k(data, base, j):
    return (field(data, base + 32, j, 2, 32) | field(data, base, j, 1, 32) << 2) - 4


@njit(inline="always")
def q3_k_part(data, base, j):
    low, high = field(data, base + 96, j // 16, 4, 8), field(data, base + 104, j // 16, 2, 4)
    return (low | high << 4) - 32


@njit(inline="always")
def q4_k(data, base, j):
    return field(data, base + 16, j, 4, 32)


@njit(inline="always")
def six_bit_part(data, base, j):
    """One of eight six-bit scales in twelve bytes, stored beside eight mins."""
    p = j // 32
    low = np.int32(data[base + 4 + p % 4])
    return low & 63 if p < 4 else np.int32(data[base + 8 + p]) & 15 | low >> 2 & 48


@njit(inline="always")
def six_bit_min(data, base, j):
    p = j // 32
    low = np.int32(data[base + 8 + p % 4])
    return low & 63 if p < 4 else np.int32(data[base + 8 + p]) >> 4 | low >> 2 & 48


@njit(inline="always")
def q5_k(data, base, j):
    return field(data, base + 48, j, 4, 32) | field(data, base + 16, j, 1, 32) << 4


@njit(inline="always")
def q6_k(data, base, j):
    return (field(data, base, j, 4, 64) | field(data, base + 128, j, 2, 32) << 4) - 32


@njit(inline="always")
def q6_k_part(data, base, j):
    return np.int32(np.int8(data[base + 192 + j // 16]))


@njit(inline="always")
def iq4_nl(data, base, j):
    return np.int32(NL[field(data, base + 2, j, 4, 16)])


@njit(inline="always")
def iq4_xs(data, base, j):
    return np.int32(NL[field(data, base + 8, j, 4, 16)])


@njit(inline="always")
def iq4_xs_part(data, base, j):
    low, high = field(data, base + 4, j // 32, 4, 1), field(data, base + 2, j // 32, 2, 1)
    return (low | high << 4) - 32


@njit(inline="always")
def mxfp4(data, base, j):
    return np.int32(FP4[field(data, base + 1, j, 4, 16)])


@njit(inline="always")
def mxfp4_scale(data, base, j):
    return np.float32(math.ldexp(1.0, int(data[base]) - 128))


@njit(inline="always")
def tq1_0(data, base, j):
    if j < 160:
        at, power = j % 32, j // 32
    elif j < 240:
        at, power = 32 + j % 16, (j - 160) // 16
    else:
        at, power = 48 + j % 4, (j - 240) // 4
    left = np.int32(data[base + at]) * np.int32(3) ** power & 255
    return (left * 3 >> 8) - 1


@njit(inline="always")
def tq2_0(data, base, j):
    return field(data, base, j, 2, 32) - 1


CODINGS = {
    "Q4_0": Coding(q4_0),
    "Q4_1": Coding(q4_1, m=2),
    "Q5_0": Coding(q5_0),
    "Q5_1": Coding(q5_1, m=2),
    "Q8_0": Coding(q8_0),
    "Q2_K": Coding(q2_k, 80, q2_k_part, 82, q2_k_min),
    "Q3_K": Coding(q3_k, 108, q3_k_part),
    "Q4_K": Coding(q4_k, 0, six_bit_part, 2, six_bit_min),
    "Q5_K": Coding(q5_k, 0, six_bit_part, 2, six_bit_min),
    "Q6_K": Coding(q6_k, 208, q6_k_part),
    "IQ1_S": Coding(grid_formats.iq1_s, 0, grid_formats.iq1_s_part, factor=1 / 8),
    "IQ1_M": Coding(
        grid_formats.iq1_m, 0, grid_formats.iq1_m_part, scale=grid_formats.iq1_m_d, factor=1 / 8
    ),
    "IQ2_XXS": Coding(grid_formats.iq2_xxs, 0, grid_formats.iq2_xxs_part, factor=1 / 8),
    "IQ2_XS": Coding(grid_formats.iq2_xs, 0, grid_formats.iq2_xs_part, factor=1 / 8),
    "IQ2_S": Coding(grid_formats.iq2_s, 0, grid_formats.iq2_s_part, factor=1 / 8),
    "IQ3_XXS": Coding(grid_formats.iq3_xxs, 0, grid_formats.iq3_xxs_part, factor=1 / 8),
    "IQ3_S": Coding(grid_formats.iq3_s, 0, grid_formats.iq3_s_part, factor=1 / 8),
    "IQ4_NL": Coding(iq4_nl),
    "IQ4_XS": Coding(iq4_xs, 0, iq4_xs_part),
    "MXFP4": Coding(mxfp4, scale=mxfp4_scale),
    "TQ1_0": Coding(tq1_0, 52),
    "TQ2_0": Coding(tq2_0, 64),
}


def element(tag, data, i):
    """Element i of the row of bytes `data`, as float32."""
    raise NotImplementedError("known to compiled code only")


@overload(element, inline="always")
def _element(tag, data, i):
    def f32(tag, data, i):
        return extract(load(f32x1, data, 4 * i), 0)

    def f16(tag, data, i):
        return half_at(data, 2 * i)

    def bf16(tag, data, i):
        return extract(convert(f32x1, load(bf16x1, data, 2 * i)), 0)

    name = tag.instance_type.format
    if name in (floats := {"F32": f32, "F16": f16, "BF16": bf16}):
        return floats[name]
    coding, elements, size = CODINGS[name], FORMATS[name].block, FORMATS[name].block_bytes
    integer, scale, offset = coding.integer, coding.scale_at(), coding.offset_at()

    def plain(tag, data, i):
        base, j = i // elements * size, i % elements
        return scale(data, base, j) * np.float32(integer(data, base, j))

    def shifted(tag, data, i):
        base, j = i // elements * size, i % elements
        return scale(data, base, j) * np.float32(integer(data, base, j)) + offset(data, base, j)

    return shifted if offset else plain
