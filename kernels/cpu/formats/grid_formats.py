"""IQ1 to IQ3 inside compiled code: an element's eighths and its part's integer.

Functions take what those of formats.py take: the bytes of a row, where the block begins, and which
of its elements is meant.
"""

import numpy as np
from numba import njit, types

from kernels.cpu.isa.bits import field, half_at
from kernels.cpu.isa.simd import load
from kernels.cpu.isa.simd_shuffle import stack
from reference.formats import grids
from reference.formats.grid_formats import EVEN_SIGNS

IQ1, IQ2_XXS, IQ2_XS, IQ2_S = grids.IQ1, grids.IQ2_XXS, grids.IQ2_XS, grids.IQ2_S
IQ3_XXS, IQ3_S = grids.IQ3_XXS, grids.IQ3_S


@njit(inline="always")
def word(data, base, i):
    return np.int32(load(types.uint16, data, base + 2 * i))


@njit(inline="always")
def signed(magnitude, signs, bit):
    return -np.int32(magnitude) if np.int32(signs) >> bit & 1 else np.int32(magnitude)


@njit(inline="always")
def even(sevens, j):
    """The signs of element j's group of eight, of four sevens in a word."""
    return EVEN_SIGNS[sevens >> np.uint32(7 * (j // 8 % 4)) & np.uint32(127)]


@njit(inline="always")
def upper_part(data, at):
    """An odd integer, from the upper four bits of a word of four bytes."""
    return 2 * np.int32(load(types.uint32, data, at) >> np.uint32(28)) + 1


@njit(inline="always")
def iq2_xxs(data, base, j):
    at = base + 2 + j // 32 * 8
    signs = even(load(types.uint32, data, at + 4), j)
    return signed(IQ2_XXS[data[at + j // 8 % 4], j % 8], signs, j % 8)


@njit(inline="always")
def iq2_xxs_part(data, base, j):
    return upper_part(data, base + 6 + j // 32 * 8)


@njit(inline="always")
def iq2_xs(data, base, j):
    group = word(data, base + 2, j // 8)
    return signed(IQ2_XS[group & 511, j % 8], EVEN_SIGNS[group >> 9], j % 8)


@njit(inline="always")
def iq2_xs_part(data, base, j):
    return 2 * field(data, base + 66, j // 16, 4, 1) + 1


@njit(inline="always")
def iq2_s(data, base, j):
    g = j // 8
    index = np.int32(data[base + 2 + g]) | field(data, base + 66, g, 2, 1) << 8
    return signed(IQ2_S[index, j % 8], data[base + 34 + g], j % 8)


@njit(inline="always")
def iq2_s_part(data, base, j):
    return 2 * field(data, base + 74, j // 16, 4, 1) + 1


@njit(inline="always")
def iq3_xxs(data, base, j):
    signs = even(load(types.uint32, data, base + 66 + j // 32 * 4), j)
    return signed(IQ3_XXS[data[base + 2 + j // 4], j % 4], signs, j % 8)


@njit(inline="always")
def iq3_xxs_part(data, base, j):
    return upper_part(data, base + 66 + j // 32 * 4)


@njit(inline="always")
def iq3_s(data, base, j):
    g = j // 4
    index = np.int32(data[base + 2 + g]) | field(data, base + 66, g, 1, 1) << 8
    return signed(IQ3_S[index, j % 4], data[base + 74 + j // 8], j % 8)


@njit(inline="always")
def iq3_s_part(data, base, j):
    return 2 * field(data, base + 106, j // 32, 4, 1) + 1


@njit(inline="always")
def moved(value, down):
    return np.int32(value) + (-1 if down else 1)


@njit(inline="always")
def iq1_s(data, base, j):
    g = j // 8
    upper = word(data, base + 34, j // 32)
    index = np.int32(data[base + 2 + g]) | (upper >> 3 * (g % 4) & 7) << 8
    return moved(IQ1[index, j % 8], upper >> 15)


@njit(inline="always")
def iq1_s_part(data, base, j):
    return 2 * (word(data, base + 34, j // 32) >> 12 & 7) + 1


@njit(inline="always")
def iq1_m(data, base, j):
    g = j // 8
    upper = field(data, base + 32, g, 4, 1)
    index = np.int32(data[base + g]) | (upper & 7) << 8
    return moved(IQ1[index, j % 8], upper >> 3)


@njit(inline="always")
def iq1_m_part(data, base, j):
    p = j // 16
    return 2 * (word(data, base + 48, p // 4) >> 3 * (p % 4) & 7) + 1


@njit(inline="always")
def iq1_m_d(data, base, _j):
    """A float16 assembled from the upper four bits of each word of scales."""
    half = stack(np.uint8, 2)
    half[0] = data[base + 49] >> 4 | data[base + 51] & 0xF0
    half[1] = data[base + 53] >> 4 | data[base + 55] & 0xF0
    return half_at(half, 0)
