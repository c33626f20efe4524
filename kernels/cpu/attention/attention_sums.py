"""The inner products of attention: rows of queries with a chunk's keys, and weights with its
values.

A few rows at a time have their sums in registers, and the first of them load keys and values to the
workspace on the way, for the others. A row's sums do not depend on other rows: its dots are chains
over head_dim, sixteen cells side by side, its weighted sum is a chain over the cells. Rows that are
too few to hide an addition's latency have four of their own chains side by side: those of four
times sixteen cells, or of four times sixteen elements of a value.
"""

import numpy as np
from numba import int64, njit

from kernels.cpu.formats.cache_rows import four_rows, line_begins, sixteen, start_of
from kernels.cpu.isa.simd import f32x16, load, prefetch, store
from kernels.cpu.isa.simd_shuffle import (
    fma_rows,
    fma_rows_of_two,
    gather_quarters,
    load_rows,
    stack,
    store_rows,
)
from kernels.cpu.isa.tiles import zeros
from kernels.cpu.runtime.closures import inlined, inner
from kernels.provenance import cpu_features

# Rows whose sums are in registers together: of two vectors each in AVX-512's, of one elsewhere.
ROWS = 8 if "avx512f" in cpu_features() else 4
PAIRS = ROWS == 8
QUERIES = 128  # rows of a tile, at most
EIGHTS = QUERIES // 8
CHUNK = 256  # cells of a chunk
WIDEST = 576  # head_dim, at most: a latent vector and its rotated part (arXiv 2405.04434)
STAGED = 32  # values on the stack at a time
ABREAST = 4  # chains of one row side by side, where rows are few
# Strides of rows: no power of two, or rows would compete for the same lines of the nearest cache.
CELL_STRIDE = CHUNK + 16
DIM_STRIDE = WIDEST + 16
# Where in a tile's workspace things lie: one array, since passing many costs calls and compilation.
QUERY = 0  # [QUERIES / 8, WIDEST, 8]: element by element, eight rows side by side
SUM = QUERY + QUERIES * WIDEST  # [QUERIES, DIM_STRIDE]: a chunk's partial results
MERGED = SUM + QUERIES * DIM_STRIDE  # like SUM: those of all chunks so far
WEIGHT = MERGED + QUERIES * DIM_STRIDE  # [QUERIES, CELL_STRIDE]: scores, then weights
KEY = WEIGHT + QUERIES * CELL_STRIDE  # [head_dim, 16], as often as there is room
VALUE = KEY + 16 * WIDEST  # [STAGED, head_dim]
WORKSPACE = VALUE + STAGED * WIDEST
AHEAD = 32  # cells: prefetch distance for one head's rows
BASES = 2 * CHUNK  # of cells: where their rows' heads begin
# Those of the chunk itself, and of what is prefetched meanwhile, into the second cache. Numba would
# compile the callee once for each literal.
OWN, ASKED, BEGIN = np.int64(0), np.int64(CHUNK), np.int64(0)


@njit(inline="always")
def first_rows(rows):
    """How many rows are computed while keys and values are loaded."""
    return ROWS if rows >= ROWS else 4 if rows >= 4 else rows


@inlined
def query_of(row):
    """Where a row's query is: its element d is 8 * d further."""
    return QUERY + row // 8 * (8 * WIDEST) + row % 8


@njit(inline="always")
def _places(head_dim):
    """How many sixteens of cells fit side by side in KEY, for rows that use two at a time."""
    return 2 if 2 * head_dim <= WIDEST else 1


@inlined
def _multiply(sums, workspace, key, d):
    """Two elements of the cells at workspace[key:], from d, times the first rows' queries."""
    sums = fma_rows(sums, load(f32x16, workspace, key + 16 * d), workspace, QUERY + 8 * d, 1)
    return fma_rows(
        sums, load(f32x16, workspace, key + 16 * d + 16), workspace, QUERY + 8 * d + 8, 1
    )


@inlined
def _put(workspace, d, a, b, c, e):
    """Store elements d, d + 4, d + 8 and d + 12 of sixteen cells to KEY."""
    store_rows(workspace, KEY + 16 * d, 64, gather_quarters(a, b, c, e))


@inner
def _bring(tag, k, bases, workspace, cell, d, to):
    """Load elements d to d + 15 of sixteen cells to those from `to` of KEY."""
    a = four_rows(tag, k, bases, cell, d)
    b = four_rows(tag, k, bases, cell + 4, d)
    c = four_rows(tag, k, bases, cell + 8, d)
    e = four_rows(tag, k, bases, cell + 12, d)
    _put(workspace, to, a[0], b[0], c[0], e[0])
    _put(workspace, to + 1, a[1], b[1], c[1], e[1])
    _put(workspace, to + 2, a[2], b[2], c[2], e[2])
    _put(workspace, to + 3, a[3], b[3], c[3], e[3])


@inlined
def _ask(tag, k, bases, cell, d):
    """Prefetch what belongs to element d of sixteen cells."""
    if line_begins(tag, d):
        for j in range(16):
            prefetch(k, load(int64, bases, ASKED + cell + j) + start_of(tag, d), 2)


@inlined
def _bring_and_multiply(sums, tag, k, bases, workspace, cell, d, to, key, before):
    """Load elements d to d + 15 of the cells from `cell` to those from `to` of KEY, interleaved
    with multiplying sixteen elements from `before` of workspace[key:] by the first rows' queries:
    shuffles and multiplications use different units."""
    a = four_rows(tag, k, bases, cell, d)
    sums = _multiply(sums, workspace, key, before)
    b = four_rows(tag, k, bases, cell + 4, d)
    sums = _multiply(sums, workspace, key, before + 2)
    c = four_rows(tag, k, bases, cell + 8, d)
    sums = _multiply(sums, workspace, key, before + 4)
    e = four_rows(tag, k, bases, cell + 12, d)
    sums = _multiply(sums, workspace, key, before + 6)
    _put(workspace, to, a[0], b[0], c[0], e[0])
    sums = _multiply(sums, workspace, key, before + 8)
    _put(workspace, to + 1, a[1], b[1], c[1], e[1])
    sums = _multiply(sums, workspace, key, before + 10)
    _put(workspace, to + 2, a[2], b[2], c[2], e[2])
    sums = _multiply(sums, workspace, key, before + 12)
    _put(workspace, to + 3, a[3], b[3], c[3], e[3])
    return _multiply(sums, workspace, key, before + 14)


@inner
def _first_dots(none, tag, k, bases, workspace, head_dim, first, last):
    """q k^T of the first rows, as many as `none` is long, with cells first to last of the chunk.
    Sixteen cells at a time are loaded to KEY, and later ones prefetched."""
    _bring(tag, k, bases, workspace, first, BEGIN, BEGIN)
    place, places = BEGIN, _places(head_dim)
    for cell in range(first, last, 16):
        sums, key = none, KEY + 16 * head_dim * place
        following = place + 1 if place + 1 < places else BEGIN
        for d in range(0, head_dim, 16):
            _ask(tag, k, bases, cell, d)
            if d + 16 < head_dim:
                to = place * head_dim + d + 16
                sums = _bring_and_multiply(sums, tag, k, bases, workspace, cell, d + 16, to, key, d)
            elif cell + 16 < last and (following != place or head_dim > 16):
                to = following * head_dim
                sums = _bring_and_multiply(
                    sums, tag, k, bases, workspace, cell + 16, BEGIN, to, key, d
                )
            else:
                for rest in range(d, head_dim, 2):
                    sums = _multiply(sums, workspace, key, rest)
        store_rows(workspace, WEIGHT + cell, CELL_STRIDE, sums)
        place = following


@inner
def _dots(none, workspace, head_dim, row, cell, key):
    """The same for rows from `row`, with the cells of workspace[key:], of KEY."""
    sums, queries = none, query_of(row)
    for d in range(head_dim):
        sums = fma_rows(sums, load(f32x16, workspace, key + 16 * d), workspace, queries + 8 * d, 1)
    store_rows(workspace, WEIGHT + row * CELL_STRIDE + cell, CELL_STRIDE, sums)


@inner
def _dots_of_two(none, workspace, head_dim, row, cell):
    """The same with the 32 cells of KEY."""
    a, b, queries, beside = none, none, query_of(row), 16 * head_dim
    for d in range(head_dim):
        at = KEY + 16 * d
        v, w = load(f32x16, workspace, at), load(f32x16, workspace, at + beside)
        a, b = fma_rows_of_two(a, b, v, w, workspace, queries + 8 * d, 1)
    store_rows(workspace, WEIGHT + row * CELL_STRIDE + cell, CELL_STRIDE, a)
    store_rows(workspace, WEIGHT + row * CELL_STRIDE + cell + 16, CELL_STRIDE, b)


@inner
def _dots_abreast(workspace, head_dim, row, cell):
    """The same for one row with four times sixteen cells."""
    a = b = c = e = zeros(f32x16, 1)
    query, step = query_of(row), 16 * head_dim
    for d in range(head_dim):
        at, own = KEY + 16 * d, query + 8 * d
        a = fma_rows(a, load(f32x16, workspace, at), workspace, own, 1)
        b = fma_rows(b, load(f32x16, workspace, at + step), workspace, own, 1)
        c = fma_rows(c, load(f32x16, workspace, at + 2 * step), workspace, own, 1)
        e = fma_rows(e, load(f32x16, workspace, at + 3 * step), workspace, own, 1)
    store_rows(workspace, WEIGHT + row * CELL_STRIDE + cell, 16, (a[0], b[0], c[0], e[0]))


@inner
def _few_dots(tag, k, bases, workspace, head_dim, rows, first, last):
    """The same for all rows, which are few, with cells first to last of the chunk."""
    most = max(1, min(ABREAST, WIDEST // head_dim))
    cell = first
    while cell < last:
        times = min(most, (last - cell + 15) // 16)
        for i in range(times):
            for d in range(0, head_dim, 16):
                _ask(tag, k, bases, cell + 16 * i, d)
                _bring(tag, k, bases, workspace, cell + 16 * i, d, i * head_dim + d)
        for row in range(rows):
            if times == ABREAST:
                _dots_abreast(workspace, head_dim, row, cell)
            else:
                for i in range(times):
                    key = KEY + 16 * i * head_dim
                    _dots(zeros(f32x16, 1), workspace, head_dim, row, cell + 16 * i, key)
        cell += 16 * times


@njit(inline="always")
def first_dots(tag, k, bases, workspace, head_dim, rows, first, last):
    """For the first rows."""
    if rows >= ROWS:
        _first_dots(zeros(f32x16, ROWS), tag, k, bases, workspace, head_dim, first, last)
    elif rows >= 4:
        _first_dots(zeros(f32x16, 4), tag, k, bases, workspace, head_dim, first, last)
    else:
        _few_dots(tag, k, bases, workspace, head_dim, rows, first, last)


@njit(inline="always")
def dots(tag, k, bases, workspace, head_dim, rows, cells):
    """q k^T of rows 0 to `rows` with the chunk's cells."""
    ends = stack(np.int64, EIGHTS)
    for eight in range(EIGHTS):
        ends[eight] = cells
    dots_seen(tag, k, bases, workspace, head_dim, rows, cells, ends)


@njit(inline="always")
def dots_seen(tag, k, bases, workspace, head_dim, rows, cells, ends):
    """The same, ROWS or four at a time, or one; each eight rows with at least as many cells as
    `ends` has for them."""
    done = first_rows(rows)
    # further rows use the contents of KEY
    step = cells if rows == done else 16 * _places(head_dim)
    for cell in range(0, cells, step):
        last = min(cell + step, cells)
        first_dots(tag, k, bases, workspace, head_dim, rows, cell, last)
        for row in range(done, rows - ROWS + 1, ROWS):
            if ends[row // 8] <= cell:
                continue
            if PAIRS and last - cell > 16:
                _dots_of_two(zeros(f32x16, ROWS), workspace, head_dim, row, cell)
            else:
                for at in range(cell, last, 16):
                    key = KEY + (at - cell) * head_dim
                    _dots(zeros(f32x16, ROWS), workspace, head_dim, row, at, key)
        for at in range(cell, last if (rows - done) % ROWS else cell, 16):
            key, row = KEY + (at - cell) * head_dim, rows - (rows - done) % ROWS
            if rows - row >= 4:
                _dots(zeros(f32x16, 4), workspace, head_dim, row, at, key)
                row += 4
            for one in range(row, rows):
                _dots(zeros(f32x16, 1), workspace, head_dim, one, at, key)


@inlined
def _ask_value(tag, v, bases, cell, begin, count):
    """Prefetch with elements from `begin` of a value."""
    for d in range(begin, begin + count, 16):
        if line_begins(tag, d):
            prefetch(v, load(int64, bases, ASKED + cell) + start_of(tag, d), 2)


@inner
def _first_values(like, tag, v, bases, workspace, head_dim, cell, count, keep):
    """Add `count` values from `cell` times their weights to the first rows, and keep them in
    VALUE."""
    paired = 0
    if PAIRS:
        paired = head_dim - head_dim % 32
        for d in range(0, paired, 32):
            sums = load_rows(like, workspace, SUM + d, DIM_STRIDE)
            others = load_rows(like, workspace, SUM + d + 16, DIM_STRIDE)
            for j in range(count):
                base, weights = load(int64, bases, cell + j), WEIGHT + cell + j
                value, other = sixteen(tag, v, base, d), sixteen(tag, v, base, d + 16)
                if keep:
                    store(workspace, VALUE + j * head_dim + d, value)
                    store(workspace, VALUE + j * head_dim + d + 16, other)
                _ask_value(tag, v, bases, cell + j, d, 32)
                sums, others = fma_rows_of_two(
                    sums, others, value, other, workspace, weights, CELL_STRIDE
                )
            store_rows(workspace, SUM + d, DIM_STRIDE, sums)
            store_rows(workspace, SUM + d + 16, DIM_STRIDE, others)
    for d in range(paired, head_dim, 16):
        sums = load_rows(like, workspace, SUM + d, DIM_STRIDE)
        for j in range(count):
            value = sixteen(tag, v, load(int64, bases, cell + j), d)
            if keep:
                store(workspace, VALUE + j * head_dim + d, value)
            _ask_value(tag, v, bases, cell + j, d, 16)
            sums = fma_rows(sums, value, workspace, WEIGHT + cell + j, CELL_STRIDE)
        store_rows(workspace, SUM + d, DIM_STRIDE, sums)


@inner
def _few_values(tag, v, bases, workspace, head_dim, rows, cell, count):
    """The same for all rows, which are few, one by one; VALUE is not used."""
    abreast = head_dim - head_dim % (16 * ABREAST)
    for row in range(rows):
        at, weights = SUM + row * DIM_STRIDE, WEIGHT + row * CELL_STRIDE + cell
        for d in range(0, abreast, 16 * ABREAST):
            sums = load_rows(zeros(f32x16, ABREAST), workspace, at + d, 16)
            a, b, c, e = (sums[0],), (sums[1],), (sums[2],), (sums[3],)
            for j in range(count):
                base = load(int64, bases, cell + j)
                if row == 0:
                    _ask_value(tag, v, bases, cell + j, d, 16 * ABREAST)
                a = fma_rows(a, sixteen(tag, v, base, d), workspace, weights + j, 1)
                b = fma_rows(b, sixteen(tag, v, base, d + 16), workspace, weights + j, 1)
                c = fma_rows(c, sixteen(tag, v, base, d + 32), workspace, weights + j, 1)
                e = fma_rows(e, sixteen(tag, v, base, d + 48), workspace, weights + j, 1)
            store_rows(workspace, at + d, 16, (a[0], b[0], c[0], e[0]))
        for d in range(abreast, head_dim, 16):
            a = load_rows(zeros(f32x16, 1), workspace, at + d, 16)
            for j in range(count):
                if row == 0:
                    _ask_value(tag, v, bases, cell + j, d, 16)
                base = load(int64, bases, cell + j)
                a = fma_rows(a, sixteen(tag, v, base, d), workspace, weights + j, 1)
            store_rows(workspace, at + d, 16, a)


@inner
def _values(like, workspace, head_dim, row, cell, first, last):
    """The same with values first to last of VALUE."""
    own, weights = SUM + row * DIM_STRIDE, WEIGHT + row * CELL_STRIDE + cell
    paired = 0
    if PAIRS:
        paired = head_dim - head_dim % 32
        for d in range(0, paired, 32):
            sums = load_rows(like, workspace, own + d, DIM_STRIDE)
            others = load_rows(like, workspace, own + d + 16, DIM_STRIDE)
            for j in range(first, last):
                at = VALUE + j * head_dim + d
                value, other = load(f32x16, workspace, at), load(f32x16, workspace, at + 16)
                sums, others = fma_rows_of_two(
                    sums, others, value, other, workspace, weights + j, CELL_STRIDE
                )
            store_rows(workspace, own + d, DIM_STRIDE, sums)
            store_rows(workspace, own + d + 16, DIM_STRIDE, others)
    for d in range(paired, head_dim, 16):
        sums = load_rows(like, workspace, own + d, DIM_STRIDE)
        for j in range(first, last):
            value = load(f32x16, workspace, VALUE + j * head_dim + d)
            sums = fma_rows(sums, value, workspace, weights + j, CELL_STRIDE)
        store_rows(workspace, own + d, DIM_STRIDE, sums)


@njit(inline="always")
def first_values(tag, v, bases, workspace, head_dim, rows, cell, count):
    """For the first rows."""
    keep = rows > first_rows(rows)
    if rows >= ROWS:
        _first_values(zeros(f32x16, ROWS), tag, v, bases, workspace, head_dim, cell, count, keep)
    elif rows >= 4:
        _first_values(zeros(f32x16, 4), tag, v, bases, workspace, head_dim, cell, count, keep)
    else:
        _few_values(tag, v, bases, workspace, head_dim, rows, cell, count)


@inner
def values(workspace, head_dim, row, last_row, cell, first, last):
    """For rows `row` to `last_row`, ROWS or four at a time, or one."""
    while last_row - row >= ROWS:
        _values(zeros(f32x16, ROWS), workspace, head_dim, row, cell, first, last)
        row += ROWS
    if last_row - row >= 4:
        _values(zeros(f32x16, 4), workspace, head_dim, row, cell, first, last)
        row += 4
    for one in range(row, last_row):
        _values(zeros(f32x16, 1), workspace, head_dim, one, cell, first, last)


@inner
def add_values(tag, v, bases, workspace, head_dim, rows, most, seen):
    """Add the chunk's values times their weights to the rows; each sees the first `seen` of the
    `most` cells."""
    first = first_rows(rows)
    for c in range(0, most, STAGED):
        staged, row = min(most - c, STAGED), BEGIN
        while row < rows:
            last, own = row + ROWS if row else first, BEGIN
            last, common = min(last, rows), staged
            for one in range(row, last):
                common = max(0, min(common, seen[one] - c))
            if row == 0:
                own = common
                first_values(tag, v, bases, workspace, head_dim, rows, c, common)
                for j in range(common, staged):  # what only some of the rows see
                    for d in range(0, head_dim, 16):
                        store(workspace, VALUE + j * head_dim + d, sixteen(tag, v, bases[c + j], d))
            values(workspace, head_dim, row, last, c, own, common)
            for one in range(row, last if common < staged else row):
                if seen[one] - c > common:
                    values(workspace, head_dim, one, one + 1, c, common, min(staged, seen[one] - c))
            row = last
