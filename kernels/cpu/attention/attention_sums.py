"""The long sums of attention: rows of queries with a chunk's keys, and its values with weights.

Some rows at a time have their sums in registers, and the first of them bring keys and values on
the way, for the others to find on the desk. A row's sums are the same in any company: its dots are
chains over head_dim, sixteen cells side by side, and its weighted sum is a chain over the cells.
Rows that are too few to fill the time in which an addition ends have four of their own chains side
by side: those of four times sixteen cells, or of four times sixteen elements of a value.
"""

from numba import int64, njit

from kernels.cpu.formats.cache_rows import four_rows, line_begins, sixteen, start_of
from kernels.cpu.isa.simd import f32x16, load, prefetch, store
from kernels.cpu.isa.simd_shuffle import fma_rows, gather_quarters, load_rows, store_rows
from kernels.cpu.isa.tiles import zeros
from kernels.cpu.runtime.closures import inner

QUERIES = 32  # rows of a tile, at most
CHUNK = 256  # cells of a chunk
WIDEST = 576  # head_dim, at most: a latent vector and what is turned (arXiv 2405.04434)
STAGED = 32  # values on the stack at a time
ABREAST = 4  # chains of one row side by side, where rows are few
# Strides of rows: no power of two, or rows would compete for the same lines of the nearest cache.
CELL_STRIDE = CHUNK + 16
DIM_STRIDE = WIDEST + 16
# Where on a tile's desk things lie: one array, since passing many costs calls and compilation.
QUERY = 0  # [QUERIES / 8, WIDEST, 8]: element by element, eight rows side by side
SUM = QUERY + QUERIES * WIDEST  # [QUERIES, DIM_STRIDE]: a chunk's partial results
MERGED = SUM + QUERIES * DIM_STRIDE  # like SUM: those of all chunks so far
WEIGHT = MERGED + QUERIES * DIM_STRIDE  # [QUERIES, CELL_STRIDE]: scores, then weights
KEY = WEIGHT + QUERIES * CELL_STRIDE  # [head_dim, 16], as often as there is room
VALUE = KEY + 16 * WIDEST  # [STAGED, head_dim]
DESK = VALUE + STAGED * WIDEST
AHEAD = 32  # cells: how early a row is asked for, meant for the second cache
BASES = CHUNK + AHEAD  # of cells: where their rows' heads begin, and of those that come next


@njit(inline="always")
def first_rows(rows):
    """How many rows are done while keys and values are brought."""
    return 8 if rows >= 8 else 4 if rows >= 4 else rows


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


@inner
def _bring(tag, k, bases, desk, cell, d, to):
    """Elements d to d + 15 of sixteen cells, to those from `to` on of KEY."""
    a = four_rows(tag, k, bases, cell, d)
    b = four_rows(tag, k, bases, cell + 4, d)
    c = four_rows(tag, k, bases, cell + 8, d)
    e = four_rows(tag, k, bases, cell + 12, d)
    _put(desk, to, a[0], b[0], c[0], e[0])
    _put(desk, to + 1, a[1], b[1], c[1], e[1])
    _put(desk, to + 2, a[2], b[2], c[2], e[2])
    _put(desk, to + 3, a[3], b[3], c[3], e[3])


@njit(inline="always")
def _ask(tag, k, v, bases, cell, d, cells):
    """For element d of sixteen cells some way behind `cell`; after all of the chunk's `cells` come
    its values."""
    if line_begins(tag, d):
        later = cell + AHEAD
        if later < cells:
            for j in range(16):
                prefetch(k, load(int64, bases, later + j) + start_of(tag, d), 2)
        else:
            for j in range(16):
                prefetch(v, load(int64, bases, later - cells + j) + start_of(tag, d), 2)


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


@inner
def _first_dots(none, tag, k, v, bases, desk, head_dim, first, last, cells):
    """q k^T of the first rows, as many as `none` is long, with cells first to last of the chunk.

    Sixteen cells at a time are brought to KEY, and later ones asked for.
    """
    _bring(tag, k, bases, desk, first, 0, 0)
    for cell in range(first, last, 16):
        sums = none
        for d in range(0, head_dim, 16):
            _ask(tag, k, v, bases, cell, d, cells)
            more = d + 16 < head_dim
            if more or cell + 16 < last:
                following, later = cell if more else cell + 16, d + 16 if more else 0
                sums = _bring_and_multiply(sums, tag, k, bases, desk, following, later, d)
            else:
                for rest in range(d, head_dim, 2):
                    sums = _multiply(sums, desk, rest)
        store_rows(desk, WEIGHT + cell, CELL_STRIDE, sums)


@inner
def _dots(none, desk, head_dim, row, cell, key):
    """The same of rows from `row` on, with the cells of desk[key:], of KEY."""
    sums, queries = none, query_of(row)
    for d in range(head_dim):
        sums = fma_rows(sums, load(f32x16, desk, key + 16 * d), desk, queries + 8 * d, 1)
    store_rows(desk, WEIGHT + row * CELL_STRIDE + cell, CELL_STRIDE, sums)


@inner
def _dots_abreast(desk, head_dim, row, cell):
    """The same of one row with four times sixteen cells."""
    a = b = c = e = zeros(f32x16, 1)
    query, step = query_of(row), 16 * head_dim
    for d in range(head_dim):
        at, own = KEY + 16 * d, query + 8 * d
        a = fma_rows(a, load(f32x16, desk, at), desk, own, 1)
        b = fma_rows(b, load(f32x16, desk, at + step), desk, own, 1)
        c = fma_rows(c, load(f32x16, desk, at + 2 * step), desk, own, 1)
        e = fma_rows(e, load(f32x16, desk, at + 3 * step), desk, own, 1)
    store_rows(desk, WEIGHT + row * CELL_STRIDE + cell, 16, (a[0], b[0], c[0], e[0]))


@inner
def _few_dots(tag, k, v, bases, desk, head_dim, rows, first, last, cells):
    """The same of all rows, which are few, with cells first to last of the chunk."""
    most = max(1, min(ABREAST, WIDEST // head_dim))
    cell = first
    while cell < last:
        times = min(most, (last - cell + 15) // 16)
        for i in range(times):
            for d in range(0, head_dim, 16):
                _ask(tag, k, v, bases, cell + 16 * i, d, cells)
                _bring(tag, k, bases, desk, cell + 16 * i, d, i * head_dim + d)
        for row in range(rows):
            if times == ABREAST:
                _dots_abreast(desk, head_dim, row, cell)
            else:
                for i in range(times):
                    key = KEY + 16 * i * head_dim
                    _dots(zeros(f32x16, 1), desk, head_dim, row, cell + 16 * i, key)
        cell += 16 * times


@njit(inline="always")
def first_dots(tag, k, v, bases, desk, head_dim, rows, first, last, cells):
    """For the first rows."""
    if rows >= 8:
        _first_dots(zeros(f32x16, 8), tag, k, v, bases, desk, head_dim, first, last, cells)
    elif rows >= 4:
        _first_dots(zeros(f32x16, 4), tag, k, v, bases, desk, head_dim, first, last, cells)
    else:
        _few_dots(tag, k, v, bases, desk, head_dim, rows, first, last, cells)


@njit(inline="always")
def dots(tag, k, v, bases, desk, head_dim, rows, cells):
    """q k^T of rows 0 to `rows` with the chunk's cells: eight or four rows at a time, or one."""
    done = first_rows(rows)
    # further rows need all of KEY, and KEY has to hold two steps of sixteen elements
    step = cells if rows == done and head_dim > 16 else 16
    for cell in range(0, cells, step):
        first_dots(tag, k, v, bases, desk, head_dim, rows, cell, cell + step, cells)
        row = done
        while rows - row >= 8:
            _dots(zeros(f32x16, 8), desk, head_dim, row, cell, KEY)
            row += 8
        if rows - row >= 4:
            _dots(zeros(f32x16, 4), desk, head_dim, row, cell, KEY)
            row += 4
        for one in range(row, rows):
            _dots(zeros(f32x16, 1), desk, head_dim, one, cell, KEY)


@njit(inline="always")
def _ask_value(tag, v, bases, cell, begin, count):
    """For so many elements from `begin` on of a value some way behind `cell`."""
    for d in range(begin, begin + count, 16):
        if line_begins(tag, d):
            prefetch(v, load(int64, bases, cell + AHEAD) + start_of(tag, d), 2)


@inner
def _first_values(like, tag, v, bases, desk, head_dim, cell, count, keep):
    """Add `count` values from `cell` on times their weights to the first rows; VALUE keeps them."""
    for d in range(0, head_dim, 16):
        sums = load_rows(like, desk, SUM + d, DIM_STRIDE)
        for j in range(count):
            value = sixteen(tag, v, load(int64, bases, cell + j), d)
            if keep:
                store(desk, VALUE + j * head_dim + d, value)
            _ask_value(tag, v, bases, cell + j, d, 16)
            sums = fma_rows(sums, value, desk, WEIGHT + cell + j, CELL_STRIDE)
        store_rows(desk, SUM + d, DIM_STRIDE, sums)


@inner
def _few_values(tag, v, bases, desk, head_dim, rows, cell, count):
    """The same of all rows, which are few, one by one; VALUE keeps nothing."""
    abreast = head_dim - head_dim % (16 * ABREAST)
    for row in range(rows):
        at, weights = SUM + row * DIM_STRIDE, WEIGHT + row * CELL_STRIDE + cell
        for d in range(0, abreast, 16 * ABREAST):
            sums = load_rows(zeros(f32x16, ABREAST), desk, at + d, 16)
            a, b, c, e = (sums[0],), (sums[1],), (sums[2],), (sums[3],)
            for j in range(count):
                base = load(int64, bases, cell + j)
                if row == 0:
                    _ask_value(tag, v, bases, cell + j, d, 16 * ABREAST)
                a = fma_rows(a, sixteen(tag, v, base, d), desk, weights + j, 1)
                b = fma_rows(b, sixteen(tag, v, base, d + 16), desk, weights + j, 1)
                c = fma_rows(c, sixteen(tag, v, base, d + 32), desk, weights + j, 1)
                e = fma_rows(e, sixteen(tag, v, base, d + 48), desk, weights + j, 1)
            store_rows(desk, at + d, 16, (a[0], b[0], c[0], e[0]))
        for d in range(abreast, head_dim, 16):
            a = load_rows(zeros(f32x16, 1), desk, at + d, 16)
            for j in range(count):
                if row == 0:
                    _ask_value(tag, v, bases, cell + j, d, 16)
                base = load(int64, bases, cell + j)
                a = fma_rows(a, sixteen(tag, v, base, d), desk, weights + j, 1)
            store_rows(desk, at + d, 16, a)


@inner
def _values(like, desk, head_dim, row, cell, first, last):
    """The same with values first to last of VALUE."""
    for d in range(0, head_dim, 16):
        sums = load_rows(like, desk, SUM + row * DIM_STRIDE + d, DIM_STRIDE)
        for j in range(first, last):
            value = load(f32x16, desk, VALUE + j * head_dim + d)
            weight = WEIGHT + row * CELL_STRIDE + cell + j
            sums = fma_rows(sums, value, desk, weight, CELL_STRIDE)
        store_rows(desk, SUM + row * DIM_STRIDE + d, DIM_STRIDE, sums)


@njit(inline="always")
def first_values(tag, v, bases, desk, head_dim, rows, cell, count):
    """For the first rows."""
    keep = rows > first_rows(rows)
    if rows >= 8:
        _first_values(zeros(f32x16, 8), tag, v, bases, desk, head_dim, cell, count, keep)
    elif rows >= 4:
        _first_values(zeros(f32x16, 4), tag, v, bases, desk, head_dim, cell, count, keep)
    else:
        _few_values(tag, v, bases, desk, head_dim, rows, cell, count)


@inner
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
