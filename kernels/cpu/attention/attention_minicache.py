"""attention_minicache on the CPU: attention.py's tiles over pages, each a chunk, and cells.

Nothing is restored: a page's rows are read in place, by attention's own sums; a merged token's
direction times a query is multiplied by the token's length, as is its weight before the direction
of its value. Retained tokens have rows of their own and the length 1.
"""

from collections.abc import Callable

import numpy as np
from numba import njit

from kernels.cpu.attention.attention import FEW
from kernels.cpu.attention.attention_pages import F16, MERGE_SIGNATURE, merging, paged_attention
from kernels.cpu.attention.attention_sums import (
    AHEAD,
    ASKED,
    BASES,
    CELL_STRIDE,
    CHUNK,
    DIM_STRIDE,
    STAGED,
    SUM,
    WEIGHT,
    WIDEST,
    dots,
    first_rows,
    first_values,
    values,
)
from kernels.cpu.attention.attention_tile import weigh
from kernels.cpu.isa.simd import f32x16, load, mul, store, zero
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments
from reference.attention.attention_minicache import OP
from reference.formats.minicache import GROUP, PLAIN
from reference.op import Shape

SIGNATURE = OP.signature.replace(" -> ", ", scratch: f32[partials] -> ")
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
def attend_page(args, workspace, bases, places, t0, t1, h0, h1, kv_head, chunk, after):
    """The `attend` of a page, which tokens t0 to t1 see alike."""
    (
        q, _, _, _, spans, positions, _, slopes, _, scale, softcap, k_pages, v_pages, page_lists, _,
        upper, _, _,
    ) = arguments(args, SIGNATURE)  # fmt: skip
    keys, rows_of_values = bases[:BASES], bases[BASES:]
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


@njit(inline="always")
def chunks_of_pages(pages):
    return np.int64(pages)


def flash() -> Callable[..., None]:
    attend_all = paged_attention(SIGNATURE, chunks_of_pages, attend_page)

    def generic(args, thread, n_threads):
        attend_all(args, thread, n_threads)

    return generic


GENERIC = Share(flash, SIGNATURE, "F16")
MERGE = Share(lambda: merging(chunks_of_pages), MERGE_SIGNATURE)
