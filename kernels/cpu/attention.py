"""attention on the CPU: (token, head) pairs are dealt out among threads, one pair by one thread.

- `generic`: flash attention (Dao et al., arXiv 2205.14135): sixteen cells at a time in portable
  vectors, with a running maximum and sum, so that no scores are stored. Blocks count from the
  first cell a token sees, so neither batch nor threads nor where a cell lies changes a bit.
- `scalar`: two plain passes over the cells, for any head_dim and as the fallback.
"""

import math
from collections.abc import Callable

import numpy as np
from numba import njit

from kernels.cpu.formats import TAGS, FormatTag, element
from kernels.cpu.share import arguments, by_format, part
from kernels.cpu.simd import (
    Vector,
    convert,
    extract,
    f16x16,
    f32x16,
    fma,
    insert,
    load,
    max_lanes,
    mul,
    splat,
    store,
    sub,
    sum_lanes,
    zero,
)
from kernels.cpu.simd_exp import exp
from reference.attention import OP
from reference.kv_write import FORMATS_OF_CACHE
from reference.op import Shape

SIGNATURE = OP.signature


def whole_vectors(shape: Shape) -> bool:
    """What `generic` takes: a head_dim that is a multiple of sixteen."""
    return shape["head_dim"] % 16 == 0


@njit(inline="always")
def capped(score, softcap):
    return softcap * math.tanh(score / softcap) if softcap != 0.0 else score


def flash(kind: Vector) -> Callable[..., None]:
    element_bytes = 4 if kind == f32x16 else 2

    def generic(block, thread, n_threads):
        (q, k, v, lists, spans, positions, cell_positions, slopes, scale, softcap, out) = arguments(
            block, SIGNATURE
        )
        tokens, heads, head_dim = q.shape
        row_bytes = k.shape[1]
        group = heads * head_dim * element_bytes // row_bytes
        for item in range(thread, tokens * heads, n_threads):
            t, h = item // heads, item % heads
            cells = lists[spans[t, 0]]
            begin, end = spans[t, 1], spans[t, 2]
            column = h // group * head_dim * element_bytes
            query, sums = q[t, h], out[t, h]
            slope, position = slopes[h], positions[t]
            for d in range(0, head_dim, 16):
                store(sums, d, zero(f32x16))
            highest, total = np.float32(-np.inf), np.float32(0)
            for first in range(begin, end, 16):
                count = min(16, end - first)
                scores = splat(f32x16, -np.inf)
                for j in range(count):
                    cell = cells[first + j]
                    base = cell * row_bytes + column
                    dot = zero(f32x16)
                    for d in range(0, head_dim, 16):
                        key = convert(f32x16, load(kind, k, base + d * element_bytes))
                        dot = fma(load(f32x16, query, d), key, dot)
                    score = capped(sum_lanes(dot) * scale, softcap)
                    score -= slope * np.float32(position - cell_positions[cell])
                    scores = insert(scores, j, score)
                before, highest = highest, max(highest, max_lanes(scores))
                shrink = extract(exp(splat(f32x16, before - highest)), 0)
                powers = exp(sub(scores, splat(f32x16, highest)))
                total = total * shrink + sum_lanes(powers)
                for d in range(0, head_dim, 16):
                    sum_ = mul(load(f32x16, sums, d), splat(f32x16, shrink))
                    for j in range(count):
                        base = cells[first + j] * row_bytes + column
                        value = convert(f32x16, load(kind, v, base + d * element_bytes))
                        sum_ = fma(splat(f32x16, extract(powers, j)), value, sum_)
                    store(sums, d, sum_)
            if end > begin:
                inverse = splat(f32x16, np.float32(1) / total)
                for d in range(0, head_dim, 16):
                    store(sums, d, mul(load(f32x16, sums, d), inverse))

    return generic


def plain(tag: FormatTag) -> Callable[..., None]:
    element_bytes = 4 if tag == TAGS["F32"] else 2

    def scalar(block, thread, n_threads):
        (q, k, v, lists, spans, positions, cell_positions, slopes, scale, softcap, out) = arguments(
            block, SIGNATURE
        )
        tokens, heads, head_dim = q.shape
        group = heads * head_dim * element_bytes // k.shape[1]
        first, last = part(tokens * heads, thread, n_threads)
        for item in range(first, last):
            t, h = item // heads, item % heads
            cells = lists[spans[t, 0]]
            column = h // group * head_dim
            highest, total = -np.inf, 0.0
            for passes in range(2):  # find the largest score, then sum what exp makes of them
                out[t, h, :] = 0
                for j in range(spans[t, 1], spans[t, 2]):
                    cell = cells[j]
                    dot = 0.0
                    for d in range(head_dim):
                        dot += float(q[t, h, d]) * element(tag, k[cell], column + d)
                    score = capped(dot * scale, softcap)
                    score -= slopes[h] * (positions[t] - cell_positions[cell])
                    if passes == 0:
                        highest = max(highest, score)
                    else:
                        weight = math.exp(score - highest)
                        total += weight
                        for d in range(head_dim):
                            out[t, h, d] += weight * element(tag, v[cell], column + d)
            for d in range(head_dim):
                if spans[t, 2] > spans[t, 1]:
                    out[t, h, d] /= total

    return scalar


FLASH_SHARES = by_format(flash, SIGNATURE, {"F32": f32x16, "F16": f16x16})
SCALAR_SHARES = by_format(plain, SIGNATURE, {name: TAGS[name] for name in FORMATS_OF_CACHE})
