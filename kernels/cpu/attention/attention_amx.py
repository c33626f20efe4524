"""attention for prompts by products of bfloat16 on AMX tiles: variant `amx_bf16`.

Queries, keys, values and weights are rounded to bfloat16; scores, softmax and sums are float32. The
queries of a workspace are rows, neighbouring tokens and of each the heads that share a KV head, so
that keys and values become tiles once for all of them. Scores are made transposed, a vector of
sixteen rows for each cell, so that softmax needs no sum across a vector:

    S^T [cells][rows] = K [cells][head_dim] Q^T,    O [rows][head_dim] = P [rows][cells] V

Chunks, their partial results and how these merge are attention.py's, and so is what makes a row's
bits the same in any company: cells that a row does not see weigh zero and add nothing.
"""

from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.attention.attention_bf16 import (
    DEEP,
    LANES,
    NOTHING,
    SIGNATURE,
    SUMS,
    TALL,
    TILE,
    Method,
    add_strange,
    element,
    flash,
)
from kernels.cpu.attention.attention_sums import CHUNK, DIM_STRIDE
from kernels.cpu.attention.attention_tile import tanh
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
from kernels.cpu.isa.simd_shuffle import transpose
from kernels.cpu.isa.simd_x86 import in_pairs, narrow
from kernels.cpu.linear.linear_amx_slices import ROW, ROWS, TileShare
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share
from reference.cache.kv_write import FORMATS_OF_CACHE


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


def key_loader(hardware: bool, tag: FormatTag) -> Any:
    both = narrow(hardware)

    @inner
    def load_keys(k, bases, head_dim, cells, words, keys):
        """Copy K unchanged, [tiles of cells][tiles of head_dim][16 cells][32 elements]."""
        depth = (head_dim + DEEP - 1) // DEEP
        for cell in range(cells):
            base = bases[cell]
            for d in range(0, head_dim, DEEP):
                at = (cell // ROWS * depth + d // DEEP) * TILE + cell % ROWS * DEEP
                low = element(tag, k, base, d, head_dim)
                store(keys, at, both(low, element(tag, k, base, d + LANES, head_dim)))

    return load_keys


def weighing(hardware: bool) -> Any:
    pairs = in_pairs(hardware)

    @inner
    def weigh(scores, begin, cells, lanes, row, places, scale, softcap, fewest, words, weights):
        """Weights from sixteen rows' scores with so many cells, whole blocks of 32, in tiles by
        rows; -> (highest score, sum of weights) of each row."""
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


def attending(tiles_tag: Any, tag: FormatTag) -> Any:
    """(state, v, bases, places, tiles, lanes, first, count, head_dim, clean, shape, memory): the
    partial results of 32 rows from `first` with a chunk of `count` cells; returns whether there are
    any."""
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
            add_strange(tag, v, bases, head_dim, count, seen, first, 2 * ROWS, partial)
        return True

    return attend


def method_of(tag: Any) -> Method:
    @njit(inline="always")
    def begin():
        state = tile_state(tag)
        configure(tag, state, FULL)
        return state

    @njit(inline="always")
    def end(state):
        release(tag, state)

    hardware = tag == AMX
    keys, attend = partial(key_loader, hardware), partial(attending, tag)
    return Method(tag.form, hardware, 2 * ROWS, begin, end, keys, attend)


def shares(tag: Any) -> dict[str, Share]:
    method = method_of(tag)
    return {f: TileShare(partial(flash, method, TAGS[f]), SIGNATURE, f) for f in FORMATS_OF_CACHE}


SHARES, EMULATED_SHARES = shares(AMX), shares(EMULATED)
