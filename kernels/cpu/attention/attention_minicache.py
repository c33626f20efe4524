"""attention_minicache on the CPU: attention.py's tiles over pages, each a chunk, and cells.

Nothing is restored: a page's rows are read in place, by attention's own sums; a merged token's
direction times a query is multiplied by the token's length, as is its weight before the direction
of its value. Retained tokens have rows of their own and the length 1.

The first arguments are attention's own, so that its code for cells reads them.
"""

import numpy as np
from numba import njit

from kernels.cpu.attention.attention import FEW, copy, finish, merge
from kernels.cpu.attention.attention_kivi import end_of_run
from kernels.cpu.attention.attention_sums import (
    AHEAD,
    ASKED,
    BASES,
    CELL_STRIDE,
    CHUNK,
    DIM_STRIDE,
    MERGED,
    QUERIES,
    STAGED,
    SUM,
    WEIGHT,
    WIDEST,
    WORKSPACE,
    dots,
    first_rows,
    first_values,
    values,
)
from kernels.cpu.attention.attention_tile import (
    attend,
    bring_queries,
    chunks_of,
    dividing,
    rows_of_head,
    weigh,
)
from kernels.cpu.formats.decoding import TAGS
from kernels.cpu.isa.simd import f32x16, load, mul, store, zero
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, part
from reference.attention.attention_minicache import OP
from reference.formats.minicache import GROUP, PLAIN
from reference.op import Shape

SIGNATURE = OP.signature.replace(" -> ", ", scratch: f32[partials] -> ")
MERGE_SIGNATURE = (
    "lists: i32[sequences capacity], spans: i32[tokens 3], sinks: f32[heads],"
    " page_lists: i32[sequences slots], packed: i32[tokens], scratch: f32[partials]"
    " -> out: f32[tokens heads head_dim]"
)
F16 = TAGS["F16"]
if GROUP != CHUNK:
    raise ImportError(f"a page has {GROUP} tokens, a chunk {CHUNK}")


def whole_vectors(shape: Shape) -> bool:
    return shape["head_dim"] % 16 == 0 and shape["head_dim"] <= WIDEST


def partials(shape: Shape) -> int:
    """Floats of scratch."""
    chunks = -(-shape["capacity"] // CHUNK) + shape["slots"]
    return min(shape["tokens"], FEW) * shape["heads"] * chunks * (shape["head_dim"] + 2)


@njit(inline="always")
def find_rows(pages, first, width, retained, upper, bases):
    """Where the rows of a block's tokens begin, in the page of a head at pages[first:]."""
    numbers = first + width * (GROUP + retained) + 8 * GROUP
    for c in range(CHUNK):
        number = np.int64(pages[numbers + c])
        if number >= GROUP - retained:
            number += upper * retained
        bases[c] = first + number * width
    for c in range(CHUNK):
        bases[ASKED + c] = bases[(c + AHEAD) % CHUNK]


@njit(inline="always")
def times_lengths(workspace, row, pages, lengths):
    """Multiply a row's numbers for the tokens of a page by their lengths."""
    at = WEIGHT + row * CELL_STRIDE
    for c in range(0, CHUNK, 16):
        found = mul(load(f32x16, workspace, at + c), load(f32x16, pages, lengths + 4 * c))
        store(workspace, at + c, found)


@inner
def attend_page(args, workspace, keys, rows_of_values, places, t0, t1, h0, h1, kv_head, chunk):
    """The `attend` of a page, which tokens t0 to t1 see alike."""
    (
        q, _, _, _, spans, positions, _, slopes, _, scale, softcap, k_pages, v_pages, page_lists, _,
        upper, _, _,
    ) = arguments(args, SIGNATURE)  # fmt: skip
    head_dim, width, size = q.shape[2], h1 - h0, k_pages.shape[2]
    rows, row_bytes = (t1 - t0) * width, 2 * head_dim
    retained = (size - PLAIN) // row_bytes - GROUP
    page = np.int64(page_lists[spans[t0, 0], chunk])
    first = (page * k_pages.shape[1] + kv_head) * size
    lengths = first + row_bytes * (GROUP + retained) + 4 * GROUP * upper
    flat_keys, flat_values = k_pages.reshape(k_pages.size), v_pages.reshape(v_pages.size)
    find_rows(flat_keys, first, row_bytes, retained, upper, keys)
    find_rows(flat_values, first, row_bytes, retained, upper, rows_of_values)
    for i in range(GROUP):
        places[i] = chunk * GROUP + i
    dots(F16, flat_keys, keys, workspace, head_dim, rows, CHUNK)
    for t in range(t0, t1):
        for h in range(h0, h1):
            row = (t - t0) * width + h - h0
            times_lengths(workspace, row, flat_keys, lengths)
            highest, total = weigh(
                workspace, row, CHUNK, scale, softcap, slopes[h], positions[t], places
            )
            times_lengths(workspace, row, flat_values, lengths)
            at = SUM + row * DIM_STRIDE
            for d in range(0, head_dim, 16):
                store(workspace, at + d, zero(f32x16))
            workspace[at + head_dim], workspace[at + head_dim + 1] = highest, total
    for c in range(0, CHUNK, STAGED):
        first_values(F16, flat_values, rows_of_values, workspace, head_dim, rows, c, STAGED)
        values(workspace, head_dim, first_rows(rows), rows, c, 0, STAGED)


def flash():
    sizes_of, place_of = dividing(F16, QUERIES)

    def generic(args, thread, n_threads):
        (
            q, k, _, lists, spans, _, _, _, sinks, _, _, _, _, page_lists, packed, _, scratch, out,
        ) = arguments(args, SIGNATURE)  # fmt: skip
        workspace, places = stack(np.float32, WORKSPACE), stack(np.int32, CHUNK)
        bases, more = stack(np.int64, BASES), stack(np.int64, BASES)
        tokens, heads, head_dim = q.shape
        units, sizes = sizes_of(q, k)
        split, chunks = tokens <= FEW, page_lists.shape[1] + chunks_of(lists.shape[1])
        most = np.int64(0)  # chunks of one of few tokens
        for t in range(tokens if split else 0):
            most = max(most, packed[t] + chunks_of(spans[t, 2] - spans[t, 1]))
        for item in range(thread, units * (most if split else 1), n_threads):
            h0, h1, column, t1, last_token = place_of(item % units, sizes)
            kv_head = column // (2 * head_dim)
            while t1 < last_token:
                t0, t1 = t1, end_of_run(spans, packed, t1, last_token)
                of_pages, first = np.int64(packed[t0]), np.int64(0)
                last = of_pages + chunks_of(bring_queries(args, workspace, t0, t1, h0, h1))
                if split:
                    first = item // units
                    last = min(last, first + 1)
                for chunk in range(first, last):
                    if chunk < of_pages:
                        attend_page(
                            args, workspace, bases, more, places, t0, t1, h0, h1, kv_head, chunk
                        )  # fmt: skip
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

    return generic


def merge_chunks(args, thread, n_threads):
    """The second share: merge the chunks of few tokens."""
    lists, spans, sinks, page_lists, packed, scratch, out = arguments(args, MERGE_SIGNATURE)
    tokens, heads, head_dim = out.shape
    chunks = page_lists.shape[1] + chunks_of(lists.shape[1])
    first, last = part(tokens * heads, thread, n_threads)
    if tokens <= FEW:
        for item in range(first, last):
            t, slot = item // heads, item * chunks * (head_dim + 2)
            cells = spans[t, 2] - spans[t, 1]
            for chunk in range(1, packed[t] + chunks_of(cells)):
                merge(scratch, slot, scratch, slot + chunk * (head_dim + 2), head_dim)
            at = item * head_dim
            finish(out, at, cells + packed[t], sinks[item % heads], scratch, slot, head_dim)


GENERIC = Share(flash, SIGNATURE, "F16")
MERGE = Share(lambda: merge_chunks, MERGE_SIGNATURE)
