"""Attention of a tile: a few queries over one chunk of cells, all on the stack.

The queries of a tile are rows: neighbouring tokens, and for each the heads that share a KV head, so
that a key or value is loaded once for all (attention_sums.py). A row's arithmetic does not depend
on other rows: its sum of weights has sixteen lanes, each a chain over its cells.
"""

from typing import Any

import numpy as np
from numba import int64, njit

from kernels.cpu.attention.attention_sums import (
    ASKED,
    CELL_STRIDE,
    CHUNK,
    DIM_STRIDE,
    EIGHTS,
    OWN,
    QUERIES,
    SUM,
    WEIGHT,
    add_values,
    dots_seen,
    query_of,
)
from kernels.cpu.formats.cache_rows import start_of
from kernels.cpu.formats.decoding import FormatTag
from kernels.cpu.isa.simd import (
    add,
    convert,
    div,
    f32x16,
    i32x16,
    less,
    load,
    max_lanes,
    maximum,
    mul,
    splat,
    store,
    sub,
    sum_lanes,
    zero,
)
from kernels.cpu.isa.simd_exp import exp, exp_of_negative
from kernels.cpu.isa.simd_shuffle import (
    first_lanes,
    stack,
    store_columns,
    transpose_quarters,
)
from kernels.cpu.runtime.closures import inlined, inner
from kernels.cpu.runtime.share import arguments
from reference.attention.attention import OP
from reference.formats import FORMATS

SIGNATURE = OP.signature.replace(" -> ", ", scratch: f32[partials] -> ")


WHOLE = np.int64(0), np.int64(0), np.int64(1)  # pieces of rows: one, all of it
UNITS, FEWEST = 128, 32  # units of queries that there are, before they have more rows than so many


def dividing(tag: FormatTag, most: int) -> tuple[Any, Any]:
    """Divides queries into units of at most `most` rows, neighbouring tokens and for each the heads
    that share a KV head or, where these are too many, some of them.

    A unit of many rows loads keys and values less often, but there must be enough for the threads.
    sizes_of(q, k) -> number of units, and sizes; place_of(unit, sizes) -> a unit's heads h0 to h1,
    the byte of a cell at which their KV head begins, and its tokens, first and end. The last
    tokens, which see most cells, are the first unit's.
    """
    block_elements, block_bytes = FORMATS[tag.format].block, FORMATS[tag.format].block_bytes

    @njit(inline="always")
    def sizes_of(q, k):
        tokens, heads, head_dim = q.shape
        kv_heads = k.shape[1] // block_bytes * block_elements // head_dim
        group = heads // kv_heads
        slices = (group + most - 1) // most
        width = (group + slices - 1) // slices
        height = max(FEWEST // width, tokens * kv_heads * slices // UNITS)
        height = max(1, min(height, most // width))
        tiles = (tokens + height - 1) // height
        return kv_heads * slices * tiles, (tokens, head_dim, group, slices, width, height, tiles)

    @njit(inline="always")
    def place_of(unit, sizes):
        tokens, head_dim, group, slices, width, height, tiles = sizes
        kv_head, piece = unit // tiles // slices, unit // tiles % slices
        h0 = kv_head * group + piece * width
        column = kv_head * (head_dim // block_elements * block_bytes)
        t0 = (tiles - 1 - unit % tiles) * height
        return h0, min(h0 + width, (kv_head + 1) * group), column, t0, min(t0 + height, tokens)

    return sizes_of, place_of


@njit(inline="always")
def tanh(x):
    """1 - 2 / (e^2x + 1): its absolute error follows from exp's, some 2^-22."""
    one = splat(f32x16, 1.0)
    power = exp(add(x, x))
    return sub(one, div(splat(f32x16, 2.0), add(power, one)))


@njit(inline="always")
def finite(highest):
    """A maximum that can be subtracted: 0 where nothing was above minus infinity, or that would
    give NaN."""
    return highest if highest > -np.inf else np.float32(0)


@njit(inline="always")
def score_cells(workspace, start, count, scale, softcap, slope, position, places):
    """Turn a row's dots with `count` cells, at workspace[start:], into scores: -> the highest."""
    top = splat(f32x16, -np.inf)
    for c in range(0, count, 16):
        score = mul(load(f32x16, workspace, start + c), splat(f32x16, scale))
        if softcap != 0.0:
            cap = splat(f32x16, softcap)
            score = mul(cap, tanh(div(score, cap)))
        if slope != 0.0:
            distance = less(splat(i32x16, position), load(i32x16, places, c))
            score = sub(score, mul(splat(f32x16, slope), convert(f32x16, distance)))
        if c + 16 > count:
            score = first_lanes(score, count - c, splat(f32x16, -np.inf))
        top = maximum(score, top)
        store(workspace, start + c, score)
    return max_lanes(top)


@inner
def weigh(workspace, row, count, scale, softcap, slope, position, places):
    """Replace a row's dots with `count` cells by exp(score - highest): -> (highest, sum)."""
    start = WEIGHT + row * CELL_STRIDE
    highest = score_cells(workspace, start, count, scale, softcap, slope, position, places)
    total, shift = zero(f32x16), splat(f32x16, finite(highest))
    for c in range(0, count, 16):
        weight = exp_of_negative(sub(load(f32x16, workspace, start + c), shift))
        total = add(total, weight)
        store(workspace, start + c, weight)
    return highest, sum_lanes(total)


@njit(inline="always")
def chunks_of(cells):
    return (cells + CHUNK - 1) // CHUNK


@njit(inline="always")
def rows_of_head(column, first):
    """What attend asks for: as many rows as it is at, from the cell `first` of those that a token
    sees, of the head at byte `column`."""
    return np.int64(first), np.int64(column), np.int64(0), np.int64(1)


@njit(inline="always")
def part_of_rows(column, size, first, row_bytes):
    """Or, of the whole rows of a chunk that begins there, the part that falls to the head at
    `column` if each asks for as many bytes as it has itself, `size` a row."""
    return np.int64(first), np.int64(0), np.int64(column // size), np.int64(row_bytes // size)


@inner
def find_rows(bases, at, cells, first, count, row_bytes, start, pieces):
    """Where rows of `count` cells have their byte `start`, from number `first` on of a list, to
    bases[at:]; behind the last it stands for itself, and so it does up to whole sixteens.

    Of `pieces`, (bytes, which, of how many): rows consist of so many, and of a chunk's, row by row,
    these are the which-th part.
    """
    size, which, many = pieces
    row, piece = first + which * CHUNK // many, which * CHUNK % many
    for c in range((count + 15) // 16 * 16):
        bases[at + c] = cells[min(row, len(cells) - 1)] * row_bytes + start + piece * size
        piece += 1
        if piece == many:
            row, piece = row + 1, 0


@inlined
def transpose_four(q, starts, i, d):
    """Elements d to d + 15 of four rows, by columns."""
    return transpose_quarters(
        load(f32x16, q, load(int64, starts, i) + d),
        load(f32x16, q, load(int64, starts, i + 1) + d),
        load(f32x16, q, load(int64, starts, i + 2) + d),
        load(f32x16, q, load(int64, starts, i + 3) + d),
    )


@inner
def load_queries(q, workspace, t0, t1, h0, h1):
    """Copy the queries of a tile, tokens t0 to t1 of heads h0 to h1, to its workspace.

    Eight rows are transposed at a time, sixteen elements of each; the last row is repeated to fill
    its eight. A column is stored as sixteen floats: the next store overwrites the surplus, and the
    last column's is never read before it is written."""
    (_, heads, head_dim), width = q.shape, h1 - h0
    starts, rows = stack(np.int64, 8), (t1 - t0) * width
    for first in range(0, rows, 8):
        for i in range(8):
            row = min(first + i, rows - 1)
            starts[i] = ((t0 + row // width) * heads + h0 + row % width) * head_dim
        for d in range(0, head_dim, 16):
            upper = transpose_four(q, starts, 0, d)
            lower = transpose_four(q, starts, 4, d)
            to = query_of(first) + 8 * d
            store_columns(upper, lower, lower, lower, workspace, to, 8)


@njit(inline="always")
def most_seen(spans, t0, t1):
    """The most cells that one of the tokens t0 to t1 sees."""
    most = np.int64(0)
    for t in range(t0, t1):
        most = max(most, spans[t, 2] - spans[t, 1])
    return most


@inner
def attend(tag, args, workspace, bases, places, t0, t1, h0, h1, column, chunk, asked):
    """A chunk's partial result for each row of a tile: weighted sum, highest score, sum.

    The tile is tokens t0 to t1, whose cells begin alike, and heads h0 to h1 of one KV head, which
    begins at byte `column` of a cell's row. Meanwhile it asks for what `asked` tells of
    (rows_of_head, part_of_rows).
    """
    (
        q, k, v, lists, spans, positions, cell_positions, slopes, _, scale, softcap, _, _,
    ) = arguments(args, SIGNATURE)  # fmt: skip
    head_dim, width, sequence = q.shape[2], h1 - h0, spans[t0, 0]
    rows = (t1 - t0) * width
    begin = spans[t0, 1] + chunk * CHUNK
    most = last = np.int64(0)  # all that follows would be compiled twice for a literal 0
    seen, ends = stack(np.int64, QUERIES), stack(np.int64, EIGHTS)
    for row in range(rows):
        seen[row] = max(0, min(spans[t0 + row // width, 2] - begin, CHUNK))
        ends[row // 8] = max(seen[row], ends[row // 8] if row % 8 else np.int64(0))
        most, last = max(most, seen[row]), max(last, np.int64(spans[t0 + row // width, 2]))
    cells, (later, start, which, parts) = lists[sequence, :last], asked
    find_rows(bases, OWN, cells, begin, most, k.shape[1], column, WHOLE)
    pieces, later = (start_of(tag, head_dim), which, parts), spans[t0, 1] + later
    find_rows(bases, ASKED, cells, later, most, k.shape[1], start, pieces)
    for c in range(most):
        places[c] = cell_positions[cells[begin + c]]
    if most > 0:
        dots_seen(tag, k, bases, workspace, head_dim, rows, most, ends)
    for row in range(rows):
        slope, position = slopes[h0 + row % width], positions[t0 + row // width]
        highest, total = weigh(workspace, row, seen[row], scale, softcap, slope, position, places)
        at = SUM + row * DIM_STRIDE
        for d in range(0, head_dim, 16):
            store(workspace, at + d, zero(f32x16))
        workspace[at + head_dim], workspace[at + head_dim + 1] = highest, total
    add_values(tag, v, bases, workspace, head_dim, rows, most, seen)
