"""attention_kivi on the CPU: attention.py's tiles over chunks of pages, and then of cells.

A page's codes lie so that a vector of words is sixteen cells of its keys, or sixteen channels of
its values, with a number more in every two bits. One is zero + step * code, exactly the float32
that the page holds: with AVX-512 a look-up in a table of the four, made once for a group. Nothing
is decoded to memory; queries beyond what fits into registers decode again.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.attention.attention import FEW
from kernels.cpu.attention.attention_pages import MERGE_SIGNATURE, merging, paged_attention
from kernels.cpu.attention.attention_sums import (
    CELL_STRIDE,
    CHUNK,
    DIM_STRIDE,
    KEY,
    SUM,
    WEIGHT,
    WIDEST,
    query_of,
)
from kernels.cpu.attention.attention_tile import weigh
from kernels.cpu.formats.columns import CODES
from kernels.cpu.isa.simd import (
    add,
    convert,
    extract,
    f16x16,
    f32x1,
    f32x16,
    fma,
    i8x16,
    i32x16,
    load,
    mul,
    of_upper_bits,
    prefetch,
    splat,
    store,
    two_bits,
    zero,
)
from kernels.cpu.isa.simd_shuffle import fma_rows, load_rows, store_rows
from kernels.cpu.isa.simd_x86 import picked
from kernels.cpu.isa.tiles import zeros
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments
from reference.attention.attention_kivi import OP
from reference.formats.kivi import GROUP, LARGEST_CODE, PAGE_BYTES
from reference.op import Shape

SIGNATURE = OP.signature.replace(" -> ", ", scratch: f32[partials] -> ")
PAGES = CHUNK // GROUP  # of a chunk
LOWER, UPPER = CODES % (LARGEST_CODE + 1), CODES // (LARGEST_CODE + 1)  # two of four bits
EARLY = 2  # pages: prefetch distance
STEP = KEY + WIDEST  # where steps are stored, as float32, after the zero points at KEY


def whole_groups(shape: Shape) -> bool:
    """Heads are whole groups of channels, up to the widest."""
    return shape["head_dim"] % GROUP == 0 and shape["head_dim"] <= WIDEST


def partials(shape: Shape) -> int:
    """Floats of scratch."""
    chunks = -(-shape["capacity"] // CHUNK) - (-shape["slots"] // PAGES)
    return min(shape["tokens"], FEW) * shape["heads"] * chunks * (shape["head_dim"] + 2)


@njit(inline="always")
def everywhere(workspace, at):
    return splat(f32x16, extract(load(f32x1, workspace, at), 0))


@njit(inline="always")
def by_arithmetic(workspace, place, codes, shift):
    first = mul(everywhere(workspace, STEP + place), two_bits(codes, shift))
    second = mul(everywhere(workspace, STEP + place + 1), two_bits(codes, shift + 2))
    return add(first, everywhere(workspace, KEY + place)), add(
        second, everywhere(workspace, KEY + place + 1)
    )


@njit(inline="always")
def by_table(workspace, place, codes, shift):
    """One shift serves both: each table uses two of four bits. LLVM would look up each operand of a
    product and a sum."""
    low, next_low = everywhere(workspace, KEY + place), everywhere(workspace, KEY + place + 1)
    step, next_step = everywhere(workspace, STEP + place), everywhere(workspace, STEP + place + 1)
    first = fma(step, load(f32x16, LOWER, 0), low)
    second = fma(next_step, load(f32x16, UPPER, 0), next_low)
    return picked(first, codes, shift), picked(second, codes, shift)


@inner
def load_groups(pages, first, head_dim, workspace, place, count):
    """Load zero points and steps of `count` groups, from `place`, of the page of a head at
    pages[first:], as float32 to KEY and STEP."""
    for i in range(0, count, 16):
        lows = load(f16x16, pages, first + 8 * head_dim + 2 * (place + i))
        store(workspace, KEY + i, convert(f32x16, lows))
        steps = load(i8x16, pages, first + 10 * head_dim + place + i)
        store(workspace, STEP + i, of_upper_bits(steps))


@njit(inline="always")
def prefetch_bytes(pages, first, size):
    for byte in range(0, size, 64):
        prefetch(pages, first + byte, 3)


@njit(inline="always")
def find_pages(bases, at, lists, first, last, page_bytes, head_bytes):
    """Where a head begins in pages `first` to `last` of a list, to bases[at:]: -> how many."""
    for p in range(first, last):
        bases[at + p - first] = np.int64(lists[p]) * page_bytes + head_bytes
    return max(0, last - first)


def attending(numbers: Any) -> Any:
    """attend_pages, with numbers(workspace, place, codes, shift): the two values named by the four
    bits of each word from `shift`, of groups `place` and place + 1 in the workspace."""

    @inner
    def dots_of_page(none, pages, first, workspace, head_dim, row, cell):
        """q k^T of rows from `row`, as many as `none` is long, with the 32 cells of a page."""
        early, late, queries = none, none, query_of(row)
        for b in range(0, head_dim, 16):
            codes = load(i32x16, pages, first + 8 * b)
            more = load(i32x16, pages, first + 8 * b + 64)
            for j in range(0, 16, 2):
                query = queries + 8 * (b + j)
                x, y = (
                    numbers(workspace, b + j, codes, 2 * j),
                    numbers(workspace, b + j, more, 2 * j),
                )
                early = fma_rows(early, x[0], workspace, query, 1)
                late = fma_rows(late, y[0], workspace, query, 1)
                early = fma_rows(early, x[1], workspace, query + 8, 1)
                late = fma_rows(late, y[1], workspace, query + 8, 1)
        scores = WEIGHT + row * CELL_STRIDE + cell
        store_rows(workspace, scores, CELL_STRIDE, early)
        store_rows(workspace, scores + 16, CELL_STRIDE, late)

    @inner
    def values_of_page(like, pages, first, workspace, head_dim, row, cell):
        """Add the values of a page's 32 cells, times their weights, to rows from `row`."""
        for d in range(0, head_dim, GROUP):
            load_groups(pages, first, head_dim, workspace, d, GROUP)
            at = SUM + row * DIM_STRIDE + d
            left = load_rows(like, workspace, at, DIM_STRIDE)
            right = load_rows(like, workspace, at + 16, DIM_STRIDE)
            for t in range(0, GROUP, 16):
                codes = load(i32x16, pages, first + 8 * d + 4 * t)
                more = load(i32x16, pages, first + 8 * d + 4 * t + 128)
                for j in range(0, 16, 2):
                    weight = WEIGHT + row * CELL_STRIDE + cell + t + j
                    x, y = (
                        numbers(workspace, t + j, codes, 2 * j),
                        numbers(workspace, t + j, more, 2 * j),
                    )
                    left = fma_rows(left, x[0], workspace, weight, CELL_STRIDE)
                    right = fma_rows(right, y[0], workspace, weight, CELL_STRIDE)
                    left = fma_rows(left, x[1], workspace, weight + 1, CELL_STRIDE)
                    right = fma_rows(right, y[1], workspace, weight + 1, CELL_STRIDE)
            store_rows(workspace, at, DIM_STRIDE, left)
            store_rows(workspace, at + 16, DIM_STRIDE, right)

    @njit(inline="always")
    def prefetch_next(k_pages, v_pages, bases, count, more, p, size):
        """Prefetch the p-th of a chunk's keys, then of its values, then of the next keys."""
        if p < count:
            prefetch_bytes(k_pages, bases[p], size)
        elif p < 2 * count:
            prefetch_bytes(v_pages, bases[p - count], size)
        elif p < 2 * count + more:
            prefetch_bytes(k_pages, bases[PAGES + p - 2 * count], size)

    @njit(inline="always")
    def by_rows(keys, pages, first, workspace, head_dim, rows, cell):
        """Run either for all rows: eight or four at a time, or one."""
        row = 0
        while row < rows:
            left = rows - row
            if keys:
                if left >= 8:
                    dots_of_page(zeros(f32x16, 8), pages, first, workspace, head_dim, row, cell)
                elif left >= 4:
                    dots_of_page(zeros(f32x16, 4), pages, first, workspace, head_dim, row, cell)
                else:
                    dots_of_page(zeros(f32x16, 1), pages, first, workspace, head_dim, row, cell)
            elif left >= 8:
                values_of_page(zeros(f32x16, 8), pages, first, workspace, head_dim, row, cell)
            elif left >= 4:
                values_of_page(zeros(f32x16, 4), pages, first, workspace, head_dim, row, cell)
            else:
                values_of_page(zeros(f32x16, 1), pages, first, workspace, head_dim, row, cell)
            row += 8 if left >= 8 else 4 if left >= 4 else 1

    @inner
    def attend_pages(args, workspace, bases, places, t0, t1, h0, h1, kv_head, chunk, after):
        """The `attend` of a chunk of pages, which tokens t0 to t1 see alike. `after` is the next
        kv_head and chunk, whose pages are prefetched."""
        (
            q, _, _, _, spans, positions, _, slopes, _, scale, softcap, k_pages, v_pages,
            page_lists, packed, _, _,
        ) = arguments(args, SIGNATURE)  # fmt: skip
        head_dim, width, begin, seen = q.shape[2], h1 - h0, chunk * PAGES, np.int64(packed[t0])
        rows, size, own = (t1 - t0) * width, head_dim * PAGE_BYTES, page_lists[spans[t0, 0]]
        whole, later = k_pages.shape[1] * size, after[1] * PAGES
        end = min(begin + PAGES, seen)
        count = find_pages(bases, 0, own, begin, end, whole, kv_head * size)
        end = min(later + EARLY, seen)
        more = find_pages(bases, PAGES, own, later, end, whole, after[0] * size)
        for i in range(count * GROUP):
            places[i] = begin * GROUP + i
        for p in range(count):
            prefetch_next(k_pages, v_pages, bases, count, more, p + EARLY, size)
            load_groups(k_pages, bases[p], head_dim, workspace, 0, head_dim)
            by_rows(True, k_pages, bases[p], workspace, head_dim, rows, p * GROUP)
        for t in range(t0, t1):
            for h in range(h0, h1):
                row, cells = (t - t0) * width + h - h0, count * GROUP
                highest, total = weigh(
                    workspace, row, cells, scale, softcap, slopes[h], positions[t], places
                )
                at = SUM + row * DIM_STRIDE
                for d in range(0, head_dim, 16):
                    store(workspace, at + d, zero(f32x16))
                workspace[at + head_dim], workspace[at + head_dim + 1] = highest, total
        for p in range(count):
            prefetch_next(k_pages, v_pages, bases, count, more, count + p + EARLY, size)
            by_rows(False, v_pages, bases[p], workspace, head_dim, rows, p * GROUP)

    return attend_pages


@njit(inline="always")
def chunks_of_pages(pages):
    return (np.int64(pages) + PAGES - 1) // PAGES


def flash(numbers: Any) -> Callable[..., None]:
    attend_all = paged_attention(SIGNATURE, chunks_of_pages, attending(numbers))

    def generic(args, thread, n_threads):
        attend_all(args, thread, n_threads)

    return generic


GENERIC = Share(lambda: flash(by_arithmetic), SIGNATURE, "F16")
AVX512 = Share(lambda: flash(by_table), SIGNATURE, "F16")
MERGE = Share(lambda: merging(chunks_of_pages), MERGE_SIGNATURE)
