"""attention for prompts by products of bfloat16 pairs: variant `avx512_bf16`, and what it has in
common with those on tiles (attention_amx.py).

Queries, keys, values and weights are rounded to bfloat16; scores, softmax and sums are float32. The
queries of a workspace are rows, neighbouring tokens and of each the heads that share a KV head, so
that keys and values are made pairs once for all of them.

Chunks, their partial results and how these merge are attention.py's, and so is what makes a row's
bits the same in any company: cells that a row does not see weigh zero and add nothing.

Here eight rows at a time meet 32 cells, or 32 elements of values, in registers: sixteen sums, each
a chain over pairs in order. A pair of a query, or of weights, is spread over a register once for
two vectors. Softmax is of one row after the other, as in attention_tile.py, whose scores lie alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.attention.attention import copy, end_of_run, finish, merge
from kernels.cpu.attention.attention_sums import CELL_STRIDE, CHUNK, DIM_STRIDE, WIDEST
from kernels.cpu.attention.attention_tile import chunks_of, dividing, finite, score_cells
from kernels.cpu.formats.cache_rows import sixteen
from kernels.cpu.formats.decoding import TAGS, FormatTag
from kernels.cpu.isa.simd import (
    add,
    bf16x32,
    f32x16,
    finite_or_zero,
    load,
    splat,
    store,
    sub,
    sum_lanes,
    zero,
)
from kernels.cpu.isa.simd_exp import exp_of_negative
from kernels.cpu.isa.simd_shuffle import rows_of_two, stack, store_rows, transpose
from kernels.cpu.isa.simd_x86 import dot2, in_pairs, narrow
from kernels.cpu.isa.tiles import zeros
from kernels.cpu.linear.linear import named
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments
from reference.attention.attention import OP
from reference.cache.kv_write import FORMATS_OF_CACHE

SIGNATURE = OP.signature
LANES, DEEP = 16, 32  # rows of a vector; elements of a tile's row
QUERIES = 128  # rows of a workspace, at most
ROWS = 16  # of a tile
TILE = ROWS * DEEP  # elements of a tile of bfloat16
SUMS = ROWS * LANES  # of a tile of sums
TALL = CHUNK // DEEP  # tiles of weights that a chunk has
EIGHT = 8  # rows that have their sums in registers
WEIGHT_STRIDE = CELL_STRIDE // 2  # pairs of a row's weights
NOTHING = np.float32(-np.inf)

dot_rows_of_two = rows_of_two(dot2)


@dataclass(frozen=True, slots=True)
class Method:
    """How rows meet a chunk: `form` is its name, and `hardware` says whether numbers are rounded by
    instructions or portable code. So many `rows` at a time; begin() -> the state of a thread's
    tiles, which end(state) gives up. `keys` and `attend` make, for the cache's format,

    - load_keys(k, bases, head_dim, cells, words, keys), whose `words` are 1 KiB to work in;
    - attend(state, v, bases, places, tiles, lanes, first, count, head_dim, clean, shape, memory):
      the partial results of the rows from `first` on with a chunk of `count` cells; whether there
      are any.
    """

    form: str
    hardware: bool
    rows: int
    begin: Any
    end: Any
    keys: Callable[[FormatTag], Any]
    attend: Callable[[FormatTag], Any]


@njit(inline="always")
def element(tag, data, base, d, head_dim):
    """Sixteen elements of a row, or zeros beyond head_dim."""
    return sixteen(tag, data, base, d) if d < head_dim else zero(f32x16)


def loaders(tag: Any, hardware: bool) -> tuple[Any, Any]:
    """Load queries and values in pairs."""
    both, pairs = narrow(hardware), in_pairs(hardware)

    @inner
    def load_queries(q, t0, t1, h0, h1, words, queries):
        """Q^T in pairs of elements, [tiles of rows][tiles of head_dim][16 pairs][16 rows]; zeros
        beyond the last row, to an even number of tiles."""
        head_dim, width = q.shape[2], h1 - h0
        depth, rows = (head_dim + DEEP - 1) // DEEP, (t1 - t0) * width
        words_of = words.view(np.uint16)
        for tile in range((rows + 2 * ROWS - 1) // (2 * ROWS) * 2):
            for k in range(depth):
                for r in range(ROWS):
                    row = tile * ROWS + r
                    low, high = zero(f32x16), zero(f32x16)
                    if row < rows:
                        begin = (t0 + row // width) * q.shape[1] + h0 + row % width
                        at = begin * head_dim + k * DEEP
                        low = load(f32x16, q, at)
                        if k * DEEP + LANES < head_dim:
                            high = load(f32x16, q, at + LANES)
                    store(words_of, r * DEEP, both(low, high))
                transpose(words, 0, LANES, queries, (tile * depth + k) * SUMS)

    @inner
    def load_values(v, bases, head_dim, cells, values):
        """V in pairs of cells, [blocks of 32 cells][tiles of head_dim][16 pairs][16 elements],
        zero-padded to whole blocks; and whether all were finite. Non-finite values become zero,
        since a weight of zero would not hide them."""
        across, clean = head_dim // LANES, True
        for cell in range(0, (cells + DEEP - 1) // DEEP * DEEP, 2):
            for d in range(0, head_dim, LANES):
                first, second = zero(f32x16), zero(f32x16)
                if cell < cells:
                    first = sixteen(tag, v, bases[cell], d)
                if cell + 1 < cells:
                    second = sixteen(tag, v, bases[cell + 1], d)
                first, fine = finite_or_zero(first)
                second, too = finite_or_zero(second)
                clean = clean and fine and too
                at = (cell // DEEP * across + d // LANES) * TILE + cell % DEEP // 2 * DEEP
                store(values, at, pairs(first, second))
        return clean

    return load_queries, load_values


@inner
def add_strange(tag, v, bases, head_dim, cells, seen, row, rows, out):
    """Add non-finite values of cells that one of so many rows sees, from `row`, to its sum."""
    for c in range(cells):
        for d in range(0, head_dim, LANES):
            value = sixteen(tag, v, bases[c], d)
            kept, fine = finite_or_zero(value)
            for r in range(0 if fine else rows):
                if c < seen[row + r]:
                    at = r * DIM_STRIDE + d
                    store(out, at, add(load(f32x16, out, at), sub(value, kept)))


@njit(inline="always")
def look(k, lists, cell_positions, column, sight, bases, places):
    """Find the rows of `count` cells of a sequence from its cell `begin`, and their positions."""
    sequence, begin, count = sight
    for c in range(count):
        cell = lists[sequence, begin + c]
        bases[c] = cell * k.shape[1] + column
        places[c] = cell_positions[cell]


def flash(method: Method, tag: FormatTag) -> Callable[..., None]:
    sizes_of, place_of = dividing(tag, QUERIES)
    load_queries, load_values = loaders(tag, method.hardware)
    load_keys, attend = method.keys(tag), method.attend(tag)
    begin_all, end_all, step = method.begin, method.end, method.rows
    words_of_queries, tall = QUERIES * WIDEST // 2, CHUNK * WIDEST
    all_scores, all_weights = 2 * CHUNK * LANES, 2 * TALL * SUMS
    some_sums, all_sums = 2 * ROWS * DIM_STRIDE, QUERIES * DIM_STRIDE

    def kernel(args, thread, n_threads):
        (
            q, k, v, lists, spans, positions, cell_positions, slopes, sinks, scale, softcap, out,
        ) = arguments(args, SIGNATURE)  # fmt: skip
        _, heads, head_dim = q.shape
        units, sizes = sizes_of(q, k)
        words, queries = stack(np.float32, SUMS), stack(np.float32, words_of_queries)
        keys, values = stack(np.uint16, tall), stack(np.uint16, tall)
        scores, weights = stack(np.float32, all_scores), stack(np.float32, all_weights)
        partial, merged = stack(np.float32, some_sums), stack(np.float32, all_sums)
        bases, places = stack(np.int64, CHUNK), stack(np.int32, CHUNK)
        seen, when, lean = (
            stack(np.int32, QUERIES), stack(np.int32, QUERIES), stack(np.float32, QUERIES),
        )  # fmt: skip
        tiles, lanes = (keys, values, queries), (seen, when, lean)
        shape, memory = (np.float32(scale), softcap), (words, scores, weights, partial)
        state = begin_all()
        for unit in range(thread, units, n_threads):
            h0, h1, column, t1, last_token = place_of(unit, sizes)
            while t1 < last_token:
                t0, t1 = t1, end_of_run(spans, t1, last_token)
                across, most = h1 - h0, np.int64(0)
                rows = (t1 - t0) * across
                whole = (rows + step - 1) // step * step
                load_queries(q, t0, t1, h0, h1, words, queries)
                for t in range(t0, t1):
                    most = max(most, spans[t, 2] - spans[t, 1])
                for row in range(whole):
                    seen[row], when[row], lean[row] = 0, 0, 0
                    if row < rows:
                        when[row], lean[row] = (
                            positions[t0 + row // across],
                            slopes[h0 + row % across],
                        )
                for chunk in range(chunks_of(most)):
                    begin, count = spans[t0, 1] + chunk * CHUNK, np.int64(0)
                    for row in range(rows):
                        end = spans[t0 + row // across, 2]
                        seen[row] = max(0, min(end - begin, CHUNK))
                        count = max(count, seen[row])
                    sight = spans[t0, 0], begin, count
                    look(k, lists, cell_positions, column, sight, bases, places)
                    load_keys(k, bases, head_dim, count, words, keys)
                    clean = load_values(v, bases, head_dim, count, values)
                    for first in range(0, whole, step):
                        found = attend(
                            state, v, bases, places, tiles, lanes, first, count, head_dim, clean,
                            shape, memory,
                        )  # fmt: skip
                        for row in range(first, min(first + step, rows) if found else first):
                            to, source = row * DIM_STRIDE, (row - first) * DIM_STRIDE
                            if chunk == 0:
                                copy(merged, to, partial, source, head_dim)
                            elif seen[row] > 0:
                                merge(merged, to, partial, source, head_dim)
                for row in range(rows):
                    t, h = t0 + row // across, h0 + row % across
                    cells, at = spans[t, 2] - spans[t, 1], (t * heads + h) * head_dim
                    finish(out, at, cells, sinks[h], merged, row * DIM_STRIDE, head_dim)
        end_all(state)

    return named(kernel, method.form)


def key_loader(tag: FormatTag) -> Any:
    both = narrow(True)

    @inner
    def load_keys(k, bases, head_dim, cells, words, keys):
        """K^T in pairs of elements, [tiles of cells][tiles of head_dim][16 pairs][16 cells]."""
        depth, halves = (head_dim + DEEP - 1) // DEEP, words.view(np.uint16)
        for cell in range(0, cells, ROWS):
            for d in range(0, head_dim, DEEP):
                for c in range(min(ROWS, cells - cell)):
                    low = sixteen(tag, k, bases[cell + c], d)
                    high = element(tag, k, bases[cell + c], d + LANES, head_dim)
                    store(halves, c * DEEP, both(low, high))
                at = (cell // ROWS * depth + d // DEEP) * SUMS
                transpose(words, 0, LANES, keys.view(np.float32), at)

    return load_keys


@inner
def scores_of_eight(keys, cells, queries, at, pairs, out):
    """q k^T of eight rows, whose first pairs are at queries[at:], with `cells` cells, to out[row *
    CELL_STRIDE:]."""
    beside = LANES * pairs
    for cell in range(0, cells, 2 * LANES):
        a, b, key = zeros(f32x16, EIGHT), zeros(f32x16, EIGHT), cell * pairs
        for i in range(0, beside, LANES):
            v, w = load(bf16x32, keys, key + i), load(bf16x32, keys, key + beside + i)
            a, b = dot_rows_of_two(a, b, v, w, queries, at + i, 1)
        store_rows(out, cell, CELL_STRIDE, a)
        store_rows(out, cell + LANES, CELL_STRIDE, b)


@inner
def sums_of_eight(weights, values, blocks, across, out):
    """P V of eight rows with so many blocks of 32 cells, to out[row * DIM_STRIDE:]."""
    for d in range(0, across, 2):
        other = min(d + 1, across - 1)  # the last one twice rather than none
        a, b, beside = zeros(f32x16, EIGHT), zeros(f32x16, EIGHT), (other - d) * TILE
        for block in range(blocks):
            at = (block * across + d) * TILE
            for pair in range(LANES):
                v = load(bf16x32, values, at + pair * DEEP)
                w = load(bf16x32, values, at + beside + pair * DEEP)
                where = block * LANES + pair
                a, b = dot_rows_of_two(a, b, v, w, weights, where, WEIGHT_STRIDE)
        store_rows(out, d * LANES, DIM_STRIDE, a)
        store_rows(out, other * LANES, DIM_STRIDE, b)


both = narrow(True)


@inner
def weigh(scores, row, seen, cells, highest, weights):
    """Weights as bfloat16 from a row's scores with `seen` of `cells` cells, whole blocks of 32,
    zero beyond the seen ones; -> their sum before rounding."""
    start, to = row * CELL_STRIDE, 2 * row * WEIGHT_STRIDE
    even, odd, shift = zero(f32x16), zero(f32x16), splat(f32x16, finite(highest))
    for c in range((seen + LANES - 1) // LANES * LANES, cells, LANES):
        store(scores, start + c, splat(f32x16, NOTHING))
    for c in range(0, cells, DEEP):
        first = exp_of_negative(sub(load(f32x16, scores, start + c), shift))
        second = exp_of_negative(sub(load(f32x16, scores, start + c + LANES), shift))
        even, odd = add(even, first), add(odd, second)
        store(weights, to + c, both(first, second))
    return sum_lanes(add(even, odd))


def attending(tag: FormatTag) -> Any:
    @inner
    def attend(state, v, bases, places, tiles, lanes, first, count, head_dim, clean, shape, memory):
        (keys, values, queries), (scale, softcap) = tiles, shape
        (seen, positions, slopes), (_, scores, weights, partial) = lanes, memory
        most = np.int64(0)
        for row in range(first, first + EIGHT):
            most = max(most, seen[row])
        if most == 0:
            return False
        cells, pairs = (most + DEEP - 1) // DEEP * DEEP, (head_dim + DEEP - 1) // DEEP * LANES
        words, at = queries.view(np.int32), first // ROWS * pairs * ROWS + first % ROWS
        scores_of_eight(keys.view(np.int32), cells, words, at, pairs, scores)
        of_rows = weights.view(np.uint16)
        for r in range(EIGHT):
            row, start = first + r, r * CELL_STRIDE
            partial[r * DIM_STRIDE + head_dim] = score_cells(
                scores, start, seen[row], scale, softcap, slopes[row], positions[row], places
            )
        for r in range(EIGHT):
            where = r * DIM_STRIDE + head_dim
            partial[where + 1] = weigh(scores, r, seen[first + r], cells, partial[where], of_rows)
        sums_of_eight(weights.view(np.int32), values, cells // DEEP, head_dim // LANES, partial)
        if not clean:
            add_strange(tag, v, bases, head_dim, count, seen, first, EIGHT, partial)
        return True

    return attend


@njit(inline="always")
def nothing_to_begin():
    return 0


@njit(inline="always")
def nothing_to_end(state):
    pass


METHOD = Method("avx512_bf16", True, EIGHT, nothing_to_begin, nothing_to_end, key_loader, attending)
SHARES = {f: Share(partial(flash, METHOD, TAGS[f]), SIGNATURE, f) for f in FORMATS_OF_CACHE}
