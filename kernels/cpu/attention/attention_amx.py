"""attention for prompts by products of bfloat16 on AMX tiles: variant `amx_bf16`.

Queries, keys, values and weights are rounded to bfloat16; scores, softmax and sums are float32. The
queries of a desk are rows, neighbouring tokens and of each the heads that share a KV head, so that
keys and values become tiles once for all of them. Scores are made transposed, a vector of sixteen
rows for each cell, so that softmax needs no sum across a vector:

    S^T [cells][rows] = K [cells][head_dim] Q^T,    O [rows][head_dim] = P [rows][cells] V

Chunks, their partial results and how these merge are attention.py's, and so is what makes a row's
bits the same in any company: cells that a row does not see weigh zero and add nothing.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.attention.attention import copy, end_of_run, finish, merge
from kernels.cpu.attention.attention_sums import CHUNK, DIM_STRIDE, WIDEST
from kernels.cpu.attention.attention_tile import chunks_of, dividing, tanh
from kernels.cpu.formats.cache_rows import sixteen
from kernels.cpu.formats.decoding import TAGS, FormatTag
from kernels.cpu.isa.amx import (
    AMX,
    EMULATED,
    FULL,
    configure,
    release,
    tile_dot_bf16,
    tile_load,
    tile_state,
    tile_store,
    tile_zero,
)
from kernels.cpu.isa.simd import (
    add,
    convert,
    div,
    extract,
    f32x16,
    finite_or_zero,
    i32x16,
    less,
    load,
    maximum,
    mul,
    splat,
    store,
    sub,
    where_above,
    where_less,
    zero,
)
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.simd_shuffle import stack, transpose
from kernels.cpu.isa.simd_x86 import in_pairs, narrow
from kernels.cpu.linear.linear import named
from kernels.cpu.linear.linear_amx import ROW, ROWS, TileShare
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments
from reference.attention.attention import OP
from reference.cache.kv_write import FORMATS_OF_CACHE

SIGNATURE = OP.signature
LANES, DEEP = 16, 32  # rows of a vector; elements of a tile's row
QUERIES = 128  # rows of a desk, at most
TILE = ROWS * DEEP  # elements of a tile of bfloat16
SUMS = ROWS * LANES  # of a tile of sums
TALL = CHUNK // DEEP  # tiles of weights that a chunk has
NOTHING = np.float32(-np.inf)


def products(tag: Any) -> tuple[Any, Any]:
    """Products of tiles, two by two."""

    @inner
    def scores(state, keys, cells, queries, tile, depth, out):
        """S^T of so many cells, in tiles of 16, and of rows of tiles `tile` and the next:
        [2][cells][16 rows] to `out`."""
        below = CHUNK * LANES
        for cell in range(0, cells, 2 * ROWS):
            a, b = cell // ROWS * depth, tile * depth
            tile_zero(tag, state, 0)
            tile_zero(tag, state, 1)
            tile_zero(tag, state, 2)
            tile_zero(tag, state, 3)
            for k in range(depth):
                tile_load(tag, state, 4, keys, (a + k) * TILE, ROW)
                tile_load(tag, state, 5, keys, (a + depth + k) * TILE, ROW)
                tile_load(tag, state, 6, queries, (b + k) * SUMS, ROW)
                tile_load(tag, state, 7, queries, (b + depth + k) * SUMS, ROW)
                tile_dot_bf16(tag, state, 0, 4, 6)
                tile_dot_bf16(tag, state, 1, 4, 7)
                tile_dot_bf16(tag, state, 2, 5, 6)
                tile_dot_bf16(tag, state, 3, 5, 7)
            tile_store(tag, state, 0, out, cell * LANES, ROW)
            tile_store(tag, state, 1, out, cell * LANES + below, ROW)
            tile_store(tag, state, 2, out, cell * LANES + SUMS, ROW)
            tile_store(tag, state, 3, out, cell * LANES + SUMS + below, ROW)

    @inner
    def sums(state, weights, values, blocks, across, out):
        """P V of two tiles of rows with so many blocks of 32 cells, to out[row * DIM_STRIDE:]."""
        for d in range(0, across, 2):
            other = min(d + 1, across - 1)  # the last one twice rather than none
            tile_zero(tag, state, 0)
            tile_zero(tag, state, 1)
            tile_zero(tag, state, 2)
            tile_zero(tag, state, 3)
            for b in range(blocks):
                tile_load(tag, state, 4, weights, b * SUMS, ROW)
                tile_load(tag, state, 5, weights, (TALL + b) * SUMS, ROW)
                tile_load(tag, state, 6, values, (b * across + d) * TILE, ROW)
                tile_load(tag, state, 7, values, (b * across + other) * TILE, ROW)
                tile_dot_bf16(tag, state, 0, 4, 6)
                tile_dot_bf16(tag, state, 1, 4, 7)
                tile_dot_bf16(tag, state, 2, 5, 6)
                tile_dot_bf16(tag, state, 3, 5, 7)
            below = ROWS * DIM_STRIDE
            tile_store(tag, state, 0, out, d * LANES, 4 * DIM_STRIDE)
            tile_store(tag, state, 1, out, other * LANES, 4 * DIM_STRIDE)
            tile_store(tag, state, 2, out, below + d * LANES, 4 * DIM_STRIDE)
            tile_store(tag, state, 3, out, below + other * LANES, 4 * DIM_STRIDE)

    return scores, sums


@njit(inline="always")
def element(tag, data, base, d, head_dim):
    """Sixteen elements of a row, or zeros beyond head_dim."""
    return sixteen(tag, data, base, d) if d < head_dim else zero(f32x16)


def bringing(tag: Any, hardware: bool) -> tuple[Any, Any, Any]:
    """Queries, keys and values as tiles."""
    both, pairs = narrow(hardware), in_pairs(hardware)

    @inner
    def bring_queries(q, t0, t1, h0, h1, words, queries):
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
    def bring_keys(k, bases, head_dim, cells, keys):
        """K as it lies, [tiles of cells][tiles of head_dim][16 cells][32 elements]."""
        depth = (head_dim + DEEP - 1) // DEEP
        for cell in range(cells):
            base = bases[cell]
            for d in range(0, head_dim, DEEP):
                at = (cell // ROWS * depth + d // DEEP) * TILE + cell % ROWS * DEEP
                low = element(tag, k, base, d, head_dim)
                store(keys, at, both(low, element(tag, k, base, d + LANES, head_dim)))

    @inner
    def bring_values(v, bases, head_dim, cells, values):
        """V in pairs of cells, [blocks of 32 cells][tiles of head_dim][16 pairs][16 elements],
        zeros beyond the last cell, to whole blocks; and whether all were finite. What is not
        becomes zero, since a weight of zero would not hide it."""
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

    return bring_queries, bring_keys, bring_values


def weighing(hardware: bool) -> Any:
    pairs = in_pairs(hardware)

    @inner
    def weigh(scores, begin, cells, lanes, row, places, scale, softcap, fewest, words, weights):
        """Of sixteen rows' scores with so many cells, whole blocks of 32: weights, in tiles by
        rows; -> (highest score, sum of weights), of each row."""
        seen, positions, slopes = lanes
        limit, position = load(i32x16, seen, row), load(i32x16, positions, row)
        slope, top = load(f32x16, slopes, row), splat(f32x16, NOTHING)
        steep, cap = False, splat(f32x16, np.float32(softcap))
        for i in range(row, row + LANES):
            steep = steep or slopes[i] != 0
        for c in range(cells):
            score = mul(load(f32x16, scores, begin + c * LANES), splat(f32x16, scale))
            if softcap != 0.0:
                score = mul(cap, tanh(div(score, cap)))
            if steep:
                distance = less(position, splat(i32x16, places[c]))
                lean = mul(slope, convert(f32x16, distance))
                score = sub(score, lean)
            if c >= fewest:
                score = where_less(splat(i32x16, np.int32(c)), limit, score, splat(f32x16, NOTHING))
            top = maximum(score, top)
            store(scores, begin + c * LANES, score)
        shift = where_above(top, splat(f32x16, NOTHING), top)
        even, odd = zero(f32x16), zero(f32x16)
        for block in range(0, cells, DEEP):
            for c in range(block, block + DEEP, 2):
                first = exp(sub(load(f32x16, scores, begin + c * LANES), shift))
                second = exp(sub(load(f32x16, scores, begin + (c + 1) * LANES), shift))
                even, odd = add(even, first), add(odd, second)
                store(words.view(np.uint16), (c - block) // 2 * DEEP, pairs(first, second))
            transpose(words, 0, LANES, weights, block // DEEP * SUMS)
        return top, add(even, odd)

    return weigh


@inner
def add_strange(tag, v, bases, head_dim, cells, seen, row, out):
    """What is not finite among the values of cells that one of 32 rows sees, added to its sum."""
    for c in range(cells):
        for d in range(0, head_dim, LANES):
            value = sixteen(tag, v, bases[c], d)
            kept, fine = finite_or_zero(value)
            for r in range(0 if fine else 2 * ROWS):
                if c < seen[row + r]:
                    at = r * DIM_STRIDE + d
                    store(out, at, add(load(f32x16, out, at), sub(value, kept)))


@njit(inline="always")
def look(k, lists, cell_positions, column, sight, bases, places):
    """Where `count` cells of a sequence lie, from its cell `begin` on, and when they were."""
    sequence, begin, count = sight
    for c in range(count):
        cell = lists[sequence, begin + c]
        bases[c] = cell * k.shape[1] + column
        places[c] = cell_positions[cell]


def attending(tiles_tag: Any, tag: FormatTag) -> Any:
    """(state, v, bases, places, tiles, lanes, first, count, head_dim, clean, shape, memory): the
    partial results of 32 rows from `first` on with a chunk of `count` cells; whether there are any.
    """
    scores_of, sums_of = products(tiles_tag)
    weigh = weighing(tiles_tag == AMX)

    @inner
    def attend(state, v, bases, places, tiles, lanes, first, count, head_dim, clean, shape, memory):
        (keys, values, queries), (scale, softcap), seen = tiles, shape, lanes[0]
        words, scores, weights, partial = memory
        fewest, most = np.int64(CHUNK), np.int64(0)
        for row in range(first, first + 2 * ROWS):
            fewest, most = min(fewest, seen[row]), max(most, seen[row])
        if most == 0:
            return False
        cells, depth = (most + DEEP - 1) // DEEP * DEEP, (head_dim + DEEP - 1) // DEEP
        scores_of(state, keys, cells, queries, first // ROWS, depth, scores)
        for half in range(2):
            row, at, own = first + half * ROWS, half * CHUNK * LANES, weights[half * TALL * SUMS :]
            top, total = weigh(
                scores, at, cells, lanes, row, places, scale, softcap, fewest, words, own
            )
            for r in range(ROWS):
                where = (half * ROWS + r) * DIM_STRIDE + head_dim
                partial[where], partial[where + 1] = extract(top, r), extract(total, r)
        sums_of(state, weights, values, cells // DEEP, head_dim // LANES, partial)
        if not clean:
            add_strange(tag, v, bases, head_dim, count, seen, first, partial)
        return True

    return attend


def flash(tiles_tag: Any, tag: FormatTag) -> Callable[..., None]:
    sizes_of, place_of = dividing(tag, QUERIES)
    bring_queries, bring_keys, bring_values = bringing(tag, tiles_tag == AMX)
    attend = attending(tiles_tag, tag)
    words_of_queries, tall = QUERIES * WIDEST // 2, CHUNK * WIDEST
    all_scores, all_weights = 2 * CHUNK * LANES, 2 * TALL * SUMS
    some_sums, all_sums = 2 * ROWS * DIM_STRIDE, QUERIES * DIM_STRIDE

    def kernel(block, thread, n_threads):
        (
            q, k, v, lists, spans, positions, cell_positions, slopes, sinks, scale, softcap, out,
        ) = arguments(block, SIGNATURE)  # fmt: skip
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
        state = tile_state(tiles_tag)
        configure(tiles_tag, state, FULL)
        for unit in range(thread, units, n_threads):
            h0, h1, column, t1, last_token = place_of(unit, sizes)
            while t1 < last_token:
                t0, t1 = t1, end_of_run(spans, t1, last_token)
                across, most = h1 - h0, np.int64(0)
                rows = (t1 - t0) * across
                whole = (rows + 2 * ROWS - 1) // (2 * ROWS) * 2 * ROWS
                bring_queries(q, t0, t1, h0, h1, words, queries)
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
                    bring_keys(k, bases, head_dim, count, keys)
                    clean = bring_values(v, bases, head_dim, count, values)
                    for first in range(0, whole, 2 * ROWS):
                        found = attend(
                            state, v, bases, places, tiles, lanes, first, count, head_dim, clean,
                            shape, memory,
                        )  # fmt: skip
                        for row in range(first, min(first + 2 * ROWS, rows) if found else first):
                            to, source = row * DIM_STRIDE, (row - first) * DIM_STRIDE
                            if chunk == 0:
                                copy(merged, to, partial, source, head_dim)
                            elif seen[row] > 0:
                                merge(merged, to, partial, source, head_dim)
                for row in range(rows):
                    t, h = t0 + row // across, h0 + row % across
                    cells, at = spans[t, 2] - spans[t, 1], (t * heads + h) * head_dim
                    finish(out, at, cells, sinks[h], merged, row * DIM_STRIDE, head_dim)
        release(tiles_tag, state)

    return named(kernel, tiles_tag.form)


def shares(tag: Any) -> dict[str, Share]:
    return {f: TileShare(partial(flash, tag, TAGS[f]), SIGNATURE, f) for f in FORMATS_OF_CACHE}


SHARES, EMULATED_SHARES = shares(AMX), shares(EMULATED)
