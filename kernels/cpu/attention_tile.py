"""Attention of a tile: a few queries over one chunk of cells, all on the stack.

The queries of a tile are rows: neighbouring tokens, and of each the heads that share a KV head, so
that a key or value is brought once for all. A row's arithmetic is the same in any company. Its
scores are chains over head_dim, sixteen cells side by side; its sum of weights has sixteen lanes,
each a chain over its cells; its weighted sum is a chain over the cells in order.
"""

import numpy as np
from numba import int64, njit

from kernels.cpu.cache_rows import ask, four_rows, line_begins, sixteen, start_of
from kernels.cpu.share import arguments
from kernels.cpu.simd import (
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
    prefetch,
    splat,
    store,
    sub,
    sum_lanes,
    zero,
    zeros,
)
from kernels.cpu.simd_exp import exp
from kernels.cpu.simd_shuffle import (
    first_lanes,
    fma_rows,
    gather_quarters,
    load_rows,
    store_rows,
)
from reference.attention import OP

SIGNATURE = OP.signature.replace(" -> ", ", scratch: f32[partials] -> ")
QUERIES = 32  # rows of a tile, at most
CHUNK = 256  # cells of a chunk
WIDEST = 256  # head_dim, at most
STAGED = 32  # values on the stack at a time
# Strides of rows: no power of two, or rows would compete for the same lines of the nearest cache.
CELL_STRIDE = CHUNK + 16
DIM_STRIDE = WIDEST + 16
# Where on a tile's desk things lie: one array, since passing many costs calls and compilation.
QUERY = 0  # [QUERIES / 8, WIDEST, 8]: element by element, eight rows side by side
SUM = QUERY + QUERIES * WIDEST  # [QUERIES, DIM_STRIDE]: a chunk's partial results
MERGED = SUM + QUERIES * DIM_STRIDE  # like SUM: those of all chunks so far
WEIGHT = MERGED + QUERIES * DIM_STRIDE  # [QUERIES, CELL_STRIDE]: scores, then weights
KEY = WEIGHT + QUERIES * CELL_STRIDE  # [head_dim, 16]
VALUE = KEY + 16 * WIDEST  # [STAGED, head_dim]
DESK = VALUE + STAGED * WIDEST
BASES = CHUNK + STAGED  # of cells: where their rows' heads begin, and of those that come next


@njit(inline="always")
def first_rows(rows):
    """How many rows are done while keys and values are brought."""
    return 8 if rows >= 8 else 4 if rows >= 4 else 1


@njit(inline="always")
def query_of(row):
    """Where a row's query lies: its element d is 8 * d further."""
    return QUERY + row // 8 * (8 * WIDEST) + row % 8


@njit(inline="always")
def _multiply(sums, desk, d):
    """Two elements of KEY, from d on, times those of the first rows' queries."""
    sums = fma_rows(sums, load(f32x16, desk, KEY + 16 * d), desk, QUERY + 8 * d, 1)
    return fma_rows(sums, load(f32x16, desk, KEY + 16 * d + 16), desk, QUERY + 8 * d + 8, 1)


@njit(inline="always")
def _put(desk, d, a, b, c, e):
    """Elements d, d + 4, d + 8 and d + 12 of sixteen cells, to KEY."""
    store_rows(desk, KEY + 16 * d, 64, gather_quarters(a, b, c, e))


@njit
def _bring(tag, k, bases, desk, cell, d):
    """Elements d to d + 15 of sixteen cells, to KEY."""
    a = four_rows(tag, k, bases, cell, d)
    b = four_rows(tag, k, bases, cell + 4, d)
    c = four_rows(tag, k, bases, cell + 8, d)
    e = four_rows(tag, k, bases, cell + 12, d)
    _put(desk, d, a[0], b[0], c[0], e[0])
    _put(desk, d + 1, a[1], b[1], c[1], e[1])
    _put(desk, d + 2, a[2], b[2], c[2], e[2])
    _put(desk, d + 3, a[3], b[3], c[3], e[3])


@njit(inline="always")
def _bring_and_multiply(sums, tag, k, bases, desk, cell, d, before):
    """The same, and sixteen elements from `before` on times the first rows' queries, by turns.

    For shuffles and multiplications wait for different units.
    """
    a = four_rows(tag, k, bases, cell, d)
    sums = _multiply(sums, desk, before)
    b = four_rows(tag, k, bases, cell + 4, d)
    sums = _multiply(sums, desk, before + 2)
    c = four_rows(tag, k, bases, cell + 8, d)
    sums = _multiply(sums, desk, before + 4)
    e = four_rows(tag, k, bases, cell + 12, d)
    sums = _multiply(sums, desk, before + 6)
    _put(desk, d, a[0], b[0], c[0], e[0])
    sums = _multiply(sums, desk, before + 8)
    _put(desk, d + 1, a[1], b[1], c[1], e[1])
    sums = _multiply(sums, desk, before + 10)
    _put(desk, d + 2, a[2], b[2], c[2], e[2])
    sums = _multiply(sums, desk, before + 12)
    _put(desk, d + 3, a[3], b[3], c[3], e[3])
    return _multiply(sums, desk, before + 14)


@njit
def _first_dots(none, tag, k, bases, desk, head_dim, first, last):
    """q k^T of the first rows, as many as `none` is long, with cells first to last of the chunk.

    Sixteen cells at a time are brought to KEY, and those after them asked for.
    """
    _bring(tag, k, bases, desk, first, 0)
    for cell in range(first, last, 16):
        sums = none
        for d in range(0, head_dim, 16):
            if line_begins(tag, d):
                for j in range(16):
                    prefetch(k, load(int64, bases, cell + 16 + j) + start_of(tag, d), 3)
            more = d + 16 < head_dim
            if more or cell + 16 < last:
                following, later = cell if more else cell + 16, d + 16 if more else 0
                sums = _bring_and_multiply(sums, tag, k, bases, desk, following, later, d)
            else:
                for rest in range(d, head_dim, 2):
                    sums = _multiply(sums, desk, rest)
        store_rows(desk, WEIGHT + cell, CELL_STRIDE, sums)


@njit
def _dots(none, desk, head_dim, row, cell):
    """The same of rows from `row` on, with the cells of KEY."""
    sums, queries = none, query_of(row)
    for d in range(head_dim):
        key = load(f32x16, desk, KEY + 16 * d)
        sums = fma_rows(sums, key, desk, queries + 8 * d, 1)
    store_rows(desk, WEIGHT + row * CELL_STRIDE + cell, CELL_STRIDE, sums)


@njit
def first_dots(tag, k, bases, desk, head_dim, rows, first, last):
    """For the first rows."""
    if rows >= 8:
        _first_dots(zeros(f32x16, 8), tag, k, bases, desk, head_dim, first, last)
    elif rows >= 4:
        _first_dots(zeros(f32x16, 4), tag, k, bases, desk, head_dim, first, last)
    else:
        _first_dots(zeros(f32x16, 1), tag, k, bases, desk, head_dim, first, last)


@njit
def dots(tag, k, bases, desk, head_dim, rows, cells):
    """q k^T of rows 0 to `rows` with the chunk's cells: eight or four rows at a time, or one."""
    done = first_rows(rows)
    step = cells if rows == done else 16  # further rows need all of KEY
    for cell in range(0, cells, step):
        first_dots(tag, k, bases, desk, head_dim, rows, cell, cell + step)
        row = done
        while rows - row >= 8:
            _dots(zeros(f32x16, 8), desk, head_dim, row, cell)
            row += 8
        if rows - row >= 4:
            _dots(zeros(f32x16, 4), desk, head_dim, row, cell)
            row += 4
        for one in range(row, rows):
            _dots(zeros(f32x16, 1), desk, head_dim, one, cell)


@njit
def _first_values(like, tag, v, bases, desk, head_dim, cell, count, keep):
    """Add `count` values from `cell` on times their weights to the first rows; VALUE keeps them."""
    for d in range(0, head_dim, 16):
        sums = load_rows(like, desk, SUM + d, DIM_STRIDE)
        for j in range(count):
            value = sixteen(tag, v, load(int64, bases, cell + j), d)
            if keep:
                store(desk, VALUE + j * head_dim + d, value)
            if line_begins(tag, d):
                prefetch(v, load(int64, bases, cell + STAGED + j) + start_of(tag, d), 3)
            sums = fma_rows(sums, value, desk, WEIGHT + cell + j, CELL_STRIDE)
        store_rows(desk, SUM + d, DIM_STRIDE, sums)


@njit
def _values(like, desk, head_dim, row, cell, first, last):
    """The same with values first to last of VALUE."""
    for d in range(0, head_dim, 16):
        sums = load_rows(like, desk, SUM + row * DIM_STRIDE + d, DIM_STRIDE)
        for j in range(first, last):
            value = load(f32x16, desk, VALUE + j * head_dim + d)
            weight = WEIGHT + row * CELL_STRIDE + cell + j
            sums = fma_rows(sums, value, desk, weight, CELL_STRIDE)
        store_rows(desk, SUM + row * DIM_STRIDE + d, DIM_STRIDE, sums)


@njit
def first_values(tag, v, bases, desk, head_dim, rows, cell, count):
    """For the first rows."""
    keep = rows > first_rows(rows)
    if rows >= 8:
        _first_values(zeros(f32x16, 8), tag, v, bases, desk, head_dim, cell, count, keep)
    elif rows >= 4:
        _first_values(zeros(f32x16, 4), tag, v, bases, desk, head_dim, cell, count, keep)
    else:
        _first_values(zeros(f32x16, 1), tag, v, bases, desk, head_dim, cell, count, keep)


@njit
def values(desk, head_dim, row, last_row, cell, first, last):
    """For rows `row` to `last_row`, eight or four at a time, or one."""
    while last_row - row >= 8:
        _values(zeros(f32x16, 8), desk, head_dim, row, cell, first, last)
        row += 8
    if last_row - row >= 4:
        _values(zeros(f32x16, 4), desk, head_dim, row, cell, first, last)
        row += 4
    for one in range(row, last_row):
        _values(zeros(f32x16, 1), desk, head_dim, one, cell, first, last)


@njit(inline="always")
def tanh(x):
    """1 - 2 / (e^2x + 1): the absolute error is what exp's makes of it, some 2^-22."""
    one = splat(f32x16, 1.0)
    power = exp(add(x, x))
    return sub(one, div(splat(f32x16, 2.0), add(power, one)))


@njit(inline="always")
def finite(highest):
    """A maximum to subtract: 0 where nothing was above minus infinity, or that would give NaN."""
    return highest if highest > -np.inf else np.float32(0)


@njit
def weigh(desk, row, count, scale, softcap, slope, position, places):
    """exp(score - highest) in place of a row's dots with `count` cells: -> (highest, sum)."""
    start, top = WEIGHT + row * CELL_STRIDE, splat(f32x16, -np.inf)
    for c in range(0, count, 16):
        score = mul(load(f32x16, desk, start + c), splat(f32x16, scale))
        if softcap != 0.0:
            cap = splat(f32x16, softcap)
            score = mul(cap, tanh(div(score, cap)))
        if slope != 0.0:
            distance = less(splat(i32x16, position), load(i32x16, places, c))
            score = sub(score, mul(splat(f32x16, slope), convert(f32x16, distance)))
        if c + 16 > count:
            score = first_lanes(score, count - c, splat(f32x16, -np.inf))
        top = maximum(score, top)
        store(desk, start + c, score)
    highest = max_lanes(top)
    total, shift = zero(f32x16), splat(f32x16, finite(highest))
    for c in range(0, count, 16):
        weight = exp(sub(load(f32x16, desk, start + c), shift))
        total = add(total, weight)
        store(desk, start + c, weight)
    return highest, sum_lanes(total)


@njit(inline="always")
def chunks_of(cells):
    return (cells + CHUNK - 1) // CHUNK


@njit
def bring_queries(block, desk, t0, t1, h0, h1):
    """A tile's queries, to its desk: -> the most cells that one of its tokens sees."""
    q, _, _, _, spans, _, _, _, _, _, _, _ = arguments(block, SIGNATURE)
    head_dim, most = q.shape[2], 0
    for t in range(t0, t1):
        most = max(most, spans[t, 2] - spans[t, 1])
        for h in range(h0, h1):
            query = query_of((t - t0) * (h1 - h0) + h - h0)
            for d in range(head_dim):
                desk[query + 8 * d] = q[t, h, d]
    return most


@njit(inline="always")
def _within(cells, count):
    """How many of these `count` cells are among the first `cells`."""
    return max(0, min(cells, count))


@njit
def attend(tag, block, desk, bases, places, t0, t1, h0, h1, column, head_bytes, chunk):
    """A chunk's partial result for each row of a tile: weighted sum, highest score, sum.

    The tile is tokens t0 to t1, whose cells begin alike, and heads h0 to h1 of one KV head, which
    is `head_bytes` at byte `column` of a cell's row.
    """
    (
        q, k, v, lists, spans, positions, cell_positions, slopes, scale, softcap, _, _,
    ) = arguments(block, SIGNATURE)  # fmt: skip
    head_dim, width, sequence = q.shape[2], h1 - h0, spans[t0, 0]
    rows = (t1 - t0) * width
    begin = spans[t0, 1] + chunk * CHUNK
    fewest, most = CHUNK, 0
    for t in range(t0, t1):
        seen = _within(spans[t, 2] - begin, CHUNK)
        fewest, most = min(fewest, seen), max(most, seen)
    # Beyond the last cell it stands for itself; beyond a whole chunk the next cells are asked for.
    end = begin + most if most < CHUNK else lists.shape[1]
    for c in range(most + STAGED):
        cell = lists[sequence, min(begin + c, end - 1)]
        bases[c] = cell * k.shape[1] + column
        if c < most:
            places[c] = cell_positions[cell]
    if most > 0:
        dots(tag, k, bases, desk, head_dim, rows, most)
    for c in range(min(most, STAGED)):
        ask(v, bases[c], head_bytes)
    for t in range(t0, t1):
        seen = _within(spans[t, 2] - begin, CHUNK)
        for h in range(h0, h1):
            row = (t - t0) * width + h - h0
            slope, position = slopes[h], positions[t]
            highest, total = weigh(desk, row, seen, scale, softcap, slope, position, places)
            at = SUM + row * DIM_STRIDE
            for d in range(0, head_dim, 16):
                store(desk, at + d, zero(f32x16))
            desk[at + head_dim], desk[at + head_dim + 1] = highest, total
    for c in range(0, most, STAGED):
        staged = min(STAGED, most - c)
        common = _within(fewest - c, staged)
        first_values(tag, v, bases, desk, head_dim, rows, c, common)
        values(desk, head_dim, first_rows(rows), rows, c, c - c, common)
        for j in range(common, staged):  # what only some of the tokens see
            for d in range(0, head_dim, 16):
                store(desk, VALUE + j * head_dim + d, sixteen(tag, v, bases[c + j], d))
        for t in range(t0, t1):
            seen, row = _within(spans[t, 2] - begin - c, staged), (t - t0) * width
            if seen > common:
                values(desk, head_dim, row, row + width, c, common, seen)
