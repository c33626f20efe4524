"""KIVI's two-bit format: pages of 32 tokens' keys or values of a head (Liu et al., arXiv
2402.02750).

A group of 32 numbers is quantised as x = z + s q, q from 0 to 3: the zero point z is the minimum, a
float16, and s the step. Keys are grouped per channel, along the tokens, since outliers stay in the
same channels; values per token, along the channels, since attention sums over tokens. The paper's
steps are float16; here a step has one byte, the upper eight bits of a float16 without its sign, so
that an element has 2.75 bits instead of 3.

A page of a head, uint8 [head_dim, 11]: head_dim / 16 times two vectors of sixteen words, each of
sixteen codes, the first in the lowest bits; then head_dim zero points, then as many steps.

- Keys: word l of vector h of sixteen channels has their codes for token 16 h + l, in order.
- Values: it has the codes of channel l of the sixteen for 16 tokens from 16 h; zero points and
  steps are ordered by group of 32 channels, then by token.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

KIVI = "KIVI2"  # name of the cache format
GROUP = 32
LARGEST_CODE = 3
PAGE_BYTES = 11  # for each channel of a head
STEPS = (np.arange(248, dtype=np.uint16) << 7).view(np.float16).astype(np.float32)
LEAST_STEP = STEPS[1]  # 2^-17


def quantised(x: Array) -> tuple[Array, Array, Array]:
    """For finite float16 numbers as float32 [..., 32]: codes [..., 32], zero points [...], steps
    [...] as indices of STEPS.

    A step is a third of the group's range, rounded up: no code exceeds 3, and no error exceeds half
    a step. Arithmetic is float32, so that every kernel finds the same codes.
    """
    zeros = x.min(axis=-1) + np.float32(0)  # turns -0 into +0
    steps = np.searchsorted(STEPS[:-1], (x.max(axis=-1) - zeros) / np.float32(LARGEST_CODE))
    sizes = np.maximum(STEPS[steps], LEAST_STEP)
    codes = np.rint((x - zeros[..., None]) / sizes[..., None])
    return codes.astype(np.uint8), zeros.astype(np.float16), steps.astype(np.uint8)


def page_of_keys(x: Array) -> Array:
    """Encode: float32 [32, kv_heads, head_dim] -> uint8 [kv_heads, head_dim, 11]."""
    codes, zeros, steps = quantised(x.transpose(1, 2, 0))
    words = codes.reshape(len(codes), -1, 16, 2, 16).transpose(0, 1, 3, 4, 2)
    return _page(words, zeros, steps)


def page_of_values(x: Array) -> Array:
    """Encode: float32 [32, kv_heads, head_dim] -> uint8 [kv_heads, head_dim, 11]."""
    heads = x.transpose(1, 0, 2)
    codes, zeros, steps = quantised(heads.reshape(*heads.shape[:2], -1, GROUP))
    words = codes.reshape(len(codes), 2, 16, -1, 16).transpose(0, 3, 1, 4, 2)
    return _page(words, zeros.transpose(0, 2, 1), steps.transpose(0, 2, 1))


def keys_of(pages: Array) -> Array:
    """Decode: uint8 [pages, kv_heads, head_dim, 11] -> float32 [pages, 32, kv_heads, head_dim]."""
    words, zeros, steps = _parts(pages)
    codes = words.transpose(0, 1, 2, 5, 3, 4).reshape(*zeros.shape, GROUP)
    return _numbers(codes, zeros, steps).transpose(0, 3, 1, 2)


def values_of(pages: Array) -> Array:
    """Decode: uint8 [pages, kv_heads, head_dim, 11] -> float32 [pages, 32, kv_heads, head_dim]."""
    words, zeros, steps = _parts(pages)
    count, kv_heads, head_dim = zeros.shape
    dims = count, kv_heads, GROUP, head_dim // GROUP
    codes = words.transpose(0, 1, 3, 5, 2, 4).reshape(*dims, GROUP)
    zeros, steps = (
        part.reshape(count, kv_heads, dims[3], GROUP).transpose(0, 1, 3, 2)
        for part in (zeros, steps)
    )
    numbers = _numbers(codes, zeros, steps).reshape(count, kv_heads, GROUP, head_dim)
    return numbers.transpose(0, 2, 1, 3)


def _numbers(codes: Array, zeros: Array, steps: Array) -> Array:
    """zero + code * step, rounded once to float32."""
    sizes = (steps.astype(np.uint16) << 7).view(np.float16).astype(np.float64)
    return np.asarray(zeros[..., None] + codes * sizes[..., None], np.float32)


def _page(words: Array, zeros: Array, steps: Array) -> Array:
    """Lay out codes [kv_heads, head_dim / 16, 2, 16, 16], and their groups' zeros and steps."""
    shifts = 2 * np.arange(16, dtype=np.uint32)
    codes = (words.astype(np.uint32) << shifts).sum(axis=-1, dtype=np.uint32)
    parts = (np.ascontiguousarray(part).view(np.uint8) for part in (codes, zeros, steps))
    rows = np.hstack([part.reshape(len(words), -1) for part in parts])
    return rows.reshape(len(words), -1, PAGE_BYTES)


def _parts(pages: Array) -> tuple[Array, Array, Array]:
    """Split pages into codes [pages, kv_heads, head_dim / 16, 2, 16, 16], and zero points and steps
    [pages, kv_heads, head_dim] in stored order."""
    count, kv_heads, head_dim, _ = pages.shape
    rows = pages.reshape(count, kv_heads, PAGE_BYTES * head_dim)
    codes, zeros, steps = np.split(rows, [8 * head_dim, 10 * head_dim], axis=2)
    words = np.ascontiguousarray(codes).view("<u4")
    words = words.reshape(count, kv_heads, head_dim // 16, 2, 16, 1)
    fields = (words >> (2 * np.arange(16, dtype=np.uint32))) & LARGEST_CODE
    return fields, np.ascontiguousarray(zeros).view("<f2").astype(np.float64), steps
