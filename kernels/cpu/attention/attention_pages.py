"""The tiles of attention.py over a cache whose oldest tokens lie in packed pages: chunks of pages
first, then chunks of cells.

The first arguments of such a kernel are attention's own, so that its code for cells reads them;
then come the pages of keys and values, page_lists and packed, and perhaps its own.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.attention.attention import FEW, copy, finish, merge
from kernels.cpu.attention.attention_sums import (
    AHEAD,
    BASES,
    CHUNK,
    DIM_STRIDE,
    MERGED,
    QUERIES,
    SUM,
    WORKSPACE,
)
from kernels.cpu.attention.attention_tile import (
    attend,
    chunks_of,
    dividing,
    load_queries,
    most_seen,
    rows_of_head,
)
from kernels.cpu.formats.decoding import TAGS
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import arguments, part

F16 = TAGS["F16"]
MERGE_SIGNATURE = (
    "lists: i32[sequences capacity], spans: i32[tokens 3], sinks: f32[heads],"
    " page_lists: i32[sequences slots], packed: i32[tokens], scratch: f32[partials]"
    " -> out: f32[tokens heads head_dim]"
)
ALL_BASES = 2 * BASES


@njit(inline="always")
def end_of_run(spans, packed, first, last):
    """The end of the tokens from `first` that see as many pages, and whose cells begin at the same
    one."""
    t = first + 1
    while (
        t < last
        and packed[t] == packed[first]
        and spans[t, 0] == spans[first, 0]
        and spans[t, 1] == spans[first, 1]
    ):
        t += 1
    return t


def paged_attention(signature: str, chunks_of_pages: Any, attend_pages: Any) -> Any:
    """What the first share does, with chunks_of_pages(pages) and the `attend` of a chunk of pages,
    which also gets the next KV head and chunk that this thread reads."""
    sizes_of, place_of = dividing(F16, QUERIES)

    @inner
    def attend_all(args, thread, n_threads):
        given = arguments(args, signature)
        (
            q, k, _, lists, spans, _, _, _, sinks, _, _, _, _, page_lists, packed,
        ) = given[:15]  # fmt: skip
        scratch, out = given[-2], given[-1]
        workspace = stack(np.float32, WORKSPACE)
        bases, places = stack(np.int64, ALL_BASES), stack(np.int32, CHUNK)
        tokens, heads, head_dim = q.shape
        units, sizes = sizes_of(q, k)
        split = tokens <= FEW
        chunks = chunks_of_pages(page_lists.shape[1]) + chunks_of(lists.shape[1])
        most = np.int64(0)  # chunks of one of few tokens
        for t in range(tokens if split else 0):
            own = chunks_of_pages(packed[t]) + chunks_of(spans[t, 2] - spans[t, 1])
            most = max(most, own)
        for item in range(thread, units * (most if split else 1), n_threads):
            h0, h1, column, t1, last_token = place_of(item % units, sizes)
            kv_head, after = column // (2 * head_dim), item + n_threads
            next_head = place_of(after % units, sizes)[2] // (2 * head_dim) if split else kv_head
            while t1 < last_token:
                t0, t1 = t1, end_of_run(spans, packed, t1, last_token)
                of_pages = chunks_of_pages(packed[t0])
                load_queries(q, workspace, t0, t1, h0, h1)
                first, last = np.int64(0), of_pages + chunks_of(most_seen(spans, t0, t1))
                if split:
                    first = item // units
                    last = min(last, first + 1)
                for chunk in range(first, last):
                    if chunk < of_pages:
                        then = (next_head, after // units if split else chunk + 1)
                        attend_pages(
                            args, workspace, bases, places, t0, t1, h0, h1, kv_head, chunk, then
                        )
                    else:
                        of_cells = chunk - of_pages
                        attend(
                            F16, args, workspace, bases, places, t0, t1, h0, h1, column, of_cells,
                            rows_of_head(column, of_cells * CHUNK + AHEAD),
                        )  # fmt: skip
                    for t in range(t0, t1):
                        seen = of_pages + chunks_of(spans[t, 2] - spans[t, 1])
                        for h in range(h0, h1 if chunk < seen else h0):
                            row = ((t - t0) * (h1 - h0) + h - h0) * DIM_STRIDE
                            if split:
                                slot = ((t * heads + h) * chunks + chunk) * (head_dim + 2)
                                copy(scratch, slot, workspace, SUM + row, head_dim)
                            elif chunk == 0:
                                copy(workspace, MERGED + row, workspace, SUM + row, head_dim)
                            else:
                                merge(workspace, MERGED + row, workspace, SUM + row, head_dim)
                if not split:
                    for t in range(t0, t1):
                        cells = packed[t] + spans[t, 2] - spans[t, 1]
                        for h in range(h0, h1):
                            row = MERGED + ((t - t0) * (h1 - h0) + h - h0) * DIM_STRIDE
                            at = (t * heads + h) * head_dim
                            finish(out, at, cells, sinks[h], workspace, row, head_dim)

    return attend_all


def merging(chunks_of_pages: Any) -> Callable[..., None]:
    """The second share, which merges the chunks of few tokens."""

    def merge_chunks(args, thread, n_threads):
        lists, spans, sinks, page_lists, packed, scratch, out = arguments(args, MERGE_SIGNATURE)
        tokens, heads, head_dim = out.shape
        chunks = chunks_of_pages(page_lists.shape[1]) + chunks_of(lists.shape[1])
        first, last = part(tokens * heads, thread, n_threads)
        if tokens <= FEW:
            for item in range(first, last):
                t, slot = item // heads, item * chunks * (head_dim + 2)
                cells = spans[t, 2] - spans[t, 1]
                for chunk in range(1, chunks_of_pages(packed[t]) + chunks_of(cells)):
                    merge(scratch, slot, scratch, slot + chunk * (head_dim + 2), head_dim)
                at = item * head_dim
                finish(out, at, cells + packed[t], sinks[item % heads], scratch, slot, head_dim)

    return merge_chunks
