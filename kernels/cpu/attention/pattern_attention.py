"""pattern_attention on the CPU: attention.py's chunks and sums over the selected cells.

A tile is one head with neighbouring tokens of one block of queries, which select the same cells,
each as far as its own position. These are gathered, and every CHUNK of them is a chunk: so where
everything is selected a row has the arithmetic, and the bits, of attention.
"""

from collections.abc import Callable

import numpy as np
from numba import njit

from kernels.cpu.attention.attention import copy, finish, merge
from kernels.cpu.attention.attention_sums import (
    BASES,
    CHUNK,
    DIM_STRIDE,
    EIGHTS,
    MERGED,
    QUERIES,
    SUM,
    WORKSPACE,
    add_values,
    dots_seen,
)
from kernels.cpu.attention.attention_tile import load_queries, weigh
from kernels.cpu.formats.decoding import TAGS, FormatTag
from kernels.cpu.isa.simd import f32x16, store, zero
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import arguments, by_format
from kernels.shapes import in_place
from reference.attention.pattern_attention import BLOCK, OP
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS

SIGNATURE = in_place(OP.signature)


@njit(inline="always")
def begin_of_tile(spans, t1):
    """The first of the tokens before t1 within one block of queries, at most a tile's number."""
    block, t0 = (spans[t1 - 1, 2] - 1) // BLOCK, t1 - 1
    while t0 > 0 and t1 - t0 < QUERIES and spans[t0 - 1, 2] > 0:
        if (spans[t0 - 1, 2] - 1) // BLOCK != block or spans[t0 - 1, 0] != spans[t0, 0]:
            break
        t0 -= 1
    return t0


@inner
def append_selected(sees, slots, filled, j, end):
    """Append selected slots from j until there are BASES of them: -> (number, where to
    continue)."""
    while j < end and filled < BASES:
        slots[filled] = j
        filled += sees[j] != 0
        j += 1
    return filled, j


@inner
def attend(tag, args, workspace, bases, seen, rows, most):
    """The partial results of a chunk: the `most` cells at `bases`, of which each row sees the first
    `seen`."""
    q, k, v, _, _, _, scale, softcap, _ = arguments(args, SIGNATURE)
    head_dim, ends = q.shape[2], stack(np.int64, EIGHTS)
    none, places = np.float32(0), stack(np.int32, CHUNK)  # irrelevant without slopes
    for row in range(rows):
        ends[row // 8] = max(seen[row], ends[row // 8] if row % 8 else np.int64(0))
    dots_seen(tag, k, bases, workspace, head_dim, rows, most, ends)
    for row in range(rows):
        highest, total = weigh(workspace, row, seen[row], scale, softcap, none, np.int32(0), places)
        at = SUM + row * DIM_STRIDE
        for d in range(0, head_dim, 16):
            store(workspace, at + d, zero(f32x16))
        workspace[at + head_dim], workspace[at + head_dim + 1] = highest, total
    add_values(tag, v, bases, workspace, head_dim, rows, most, seen)


def flash(tag: FormatTag) -> Callable[..., None]:
    block_elements, block_bytes = FORMATS[tag.format].block, FORMATS[tag.format].block_bytes

    def generic(args, thread, n_threads):
        q, k, _, lists, spans, sees, _, _, out = arguments(args, SIGNATURE)
        workspace = stack(np.float32, WORKSPACE)
        bases, slots = stack(np.int64, BASES), stack(np.int32, BASES)
        seen, all_seen = stack(np.int64, QUERIES), stack(np.int64, QUERIES)
        tokens, heads, head_dim = q.shape
        row_bytes = k.shape[1]
        group = heads // (row_bytes // block_bytes * block_elements // head_dim)
        item, t1 = 0, tokens
        while t1 > 0:
            if spans[t1 - 1, 2] <= 0:
                t1 -= 1
                continue
            t0 = begin_of_tile(spans, t1)
            sequence, end = spans[t0, 0], np.int64(0)
            for t in range(t0, t1):
                end = max(end, spans[t, 2])
            for h in range(heads):
                item += 1
                if item % n_threads != thread:
                    continue
                all_seen[:] = 0
                load_queries(q, workspace, t0, t1, h, h + 1)
                own = sees[h, (end - 1) // BLOCK % sees.shape[1]]
                column = h // group * (head_dim // block_elements * block_bytes)
                filled, j = append_selected(own, slots, np.int64(0), np.int64(0), end)
                chunk = 0
                while filled > 0:
                    count = min(filled, CHUNK)
                    for c in range(BASES):
                        slot = slots[min(c, filled - 1)]
                        bases[c] = lists[sequence, slot] * row_bytes + column
                    most = np.int64(0)
                    for t in range(t0, t1):
                        n = count
                        while n > 0 and slots[n - 1] >= spans[t, 2]:
                            n -= 1
                        seen[t - t0], most = n, max(most, n)
                        all_seen[t - t0] += n
                    attend(tag, args, workspace, bases, seen, t1 - t0, most)
                    for row in range(t1 - t0):
                        at = row * DIM_STRIDE
                        if chunk == 0:
                            copy(workspace, MERGED + at, workspace, SUM + at, head_dim)
                        elif seen[row] > 0:
                            merge(workspace, MERGED + at, workspace, SUM + at, head_dim)
                    for c in range(count, filled):
                        slots[c - count] = slots[c]
                    filled, j = append_selected(own, slots, filled - count, j, end)
                    chunk += 1
                for row in range(t1 - t0):
                    at = ((t0 + row) * heads + h) * head_dim
                    none = np.float32(-np.inf)
                    finish(
                        out, at, all_seen[row], none, workspace, MERGED + row * DIM_STRIDE, head_dim
                    )
            t1 = t0

    return generic


SHARES = by_format(flash, SIGNATURE, {name: TAGS[name] for name in FORMATS_OF_CACHE})
