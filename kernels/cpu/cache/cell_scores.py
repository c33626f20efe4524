"""knorm, keydiff and pool_scores on the CPU: cells, or KV heads, are split among threads.

Norms and cosines are float64, since they run once for a prompt. `scratch` has a direction for each
head, in pairs of float32.
"""

import math
from collections.abc import Callable

import numpy as np
from numba import njit

from kernels.cpu.formats.decoding import TAGS, FormatTag, element
from kernels.cpu.runtime.share import arguments, by_format, part, share
from reference.cache.cell_scores import KEYS, POOLED
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.op import Shape

WITH_SCRATCH = KEYS.replace(" -> ", ", scratch: f32[partials] -> ")


def directions(shape: Shape) -> int:
    """Floats of scratch."""
    return 2 * shape["kv_heads"] * shape["head_dim"]


@njit(inline="always")
def length_of(tag, row, first, head_dim):
    """|k| of a head, from this element of a row."""
    total = 0.0
    for d in range(first, first + head_dim):
        value = np.float64(element(tag, row, d))
        total += value * value
    return math.sqrt(total)


def norms(tag: FormatTag) -> Callable[..., None]:
    block_elements, block_bytes = FORMATS[tag.format].block, FORMATS[tag.format].block_bytes

    def knorm(args, thread, n_threads):
        k, cells, kv_heads, out = arguments(args, KEYS)
        head_dim = k.shape[1] // block_bytes * block_elements // kv_heads
        first, last = part(len(cells), thread, n_threads)
        for j in range(first, last):
            for g in range(kv_heads):
                out[g, j] = -length_of(tag, k[cells[j]], g * head_dim, head_dim)

    return knorm


def differences(tag: FormatTag) -> Callable[..., None]:
    block_elements, block_bytes = FORMATS[tag.format].block, FORMATS[tag.format].block_bytes

    def keydiff(args, thread, n_threads):
        k, cells, kv_heads, scratch, out = arguments(args, WITH_SCRATCH)
        head_dim = k.shape[1] // block_bytes * block_elements // kv_heads
        anchors = scratch.view(np.float64)
        first, last = part(kv_heads, thread, n_threads)
        for g in range(first, last):
            column = g * head_dim
            for d in range(column, column + head_dim):
                anchors[d] = 0.0
            for j in range(len(cells)):
                row = k[cells[j]]
                length = length_of(tag, row, column, head_dim)
                if length > 0.0:
                    for d in range(column, column + head_dim):
                        anchors[d] += np.float64(element(tag, row, d)) / length
            size = 0.0
            for d in range(column, column + head_dim):
                size += anchors[d] * anchors[d]
            size = math.sqrt(size)
            for j in range(len(cells)):
                row, dot = k[cells[j]], 0.0
                lengths = length_of(tag, row, column, head_dim) * size
                for d in range(column, column + head_dim):
                    dot += np.float64(element(tag, row, d)) * anchors[d]
                out[g, j] = -dot / lengths if lengths > 0.0 else 0.0

    return keydiff


@share(POOLED)
def pool_scores(args, thread, n_threads):
    scores, size, last, out = arguments(args, POOLED)
    heads, held = scores.shape
    pooled, half = held - last, size // 2
    first, end = part(heads, thread, n_threads)
    for g in range(first, end):
        for j in range(pooled):
            total = np.float32(0)
            for i in range(max(0, j - half), min(pooled, j + half + 1)):
                total += scores[g, i]
            out[g, j] = total / np.float32(size)
        for j in range(pooled, held):
            out[g, j] = scores[g, j]


OF_CACHE = {name: TAGS[name] for name in FORMATS_OF_CACHE}
KNORM_SHARES = by_format(norms, KEYS, OF_CACHE)
KEYDIFF_SHARES = by_format(differences, WITH_SCRATCH, OF_CACHE)
