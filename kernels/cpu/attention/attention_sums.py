"""The long sums of attention: rows of queries with a chunk's keys, and its values with weights.

Some rows at a time have their sums in registers, and the first of them bring keys and values on
the way, for the others to find on the desk. A row's sums are the same in any company: its dots are
chains over head_dim, sixteen cells side by side, and its weighted sum is a chain over the cells.
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
AHEAD = 32  # cells: how early a row is asked for, meant for the second cache
BASES = CHUNK + AHEAD  # of cells: where their rows' heads begin, and of those that come next


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


@inner
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


@inner
def _first_dots(none, tag, k, v, bases, desk, head_dim, first, last, cells):
    """q k^T of the first rows, as many as `none` is long, with cells first to last of the chunk.

    Sixteen cells at a time are brought to KEY, and later ones asked for; after all of the chunk's
    `cells` come its values.
    """
    _bring(tag, k, bases, desk, first, 0)
    for cell in range(first, last, 16):
        sums = none
        for d in range(0, head_dim, 16):
            if line_begins(tag, d):
                later = cell + AHEAD
                if later < cells:
                    for j in range(16):
                        prefetch(k, load(int64, bases, later + j) + start_of(tag, d), 2)
                else:
                    for j in range(16):
                        prefetch(v, load(int64, bases, later - cells + j) + start_of(tag, d), 2)
            more = d + 16 < head_dim
            if more or cell + 16 < last:
                following, later = cell if more else cell + 16, d + 16 if more else 0
                sums = _bring_and_multiply(sums, tag, k, bases, desk, following, later, d)
            else:
                for rest in range(d, head_dim, 2):
                    sums = _multiply(sums, desk, rest)
        store_rows(desk, WEIGHT + cell, CELL_STRIDE, sums)


@inner
def _dots(none, desk, head_dim, row, cell):
    """The same of rows from `row` on, with the cells of KEY."""
    sums, queries = none, query_of(row)
    for d in range(head_dim):
        key = load(f32x16, desk, KEY + 16 * d)
        sums = fma_rows(sums, key, desk, queries + 8 * d, 1)
    store_rows(desk, WEIGHT + row * CELL_STRIDE + cell, CELL_STRIDE, sums)


@njit(inline="always")
def first_dots(tag, k, v, bases, desk, head_dim, rows, first, last, cells):
    """For the first rows."""
    if rows >= 8:
        _first_dots(zeros(f32x16, 8), tag, k, v, bases, desk, head_dim, first, last, cells)
    elif rows >= 4:
        _first_dots(zeros(f32x16, 4), tag, k, v, bases, desk, head_dim, first, last, cells)
    else:
        _first_dots(zeros(f32x16, 1), tag, k, v, bases, desk, head_dim, first, last, cells)


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
            _dots(zeros(f32x16, 8), desk, head_dim, row, cell)
            row += 8
        if rows - row >= 4:
            _dots(zeros(f32x16, 4), desk, head_dim, row, cell)
            row += 4
        for one in range(row, rows):
            _dots(zeros(f32x16, 1), desk, head_dim, one, cell)


@inner
def _first_values(like, tag, v, bases, desk, head_dim, cell, count, keep):
    """Add `count` values from `cell` on times their weights to the first rows; VALUE keeps them."""
    for d in range(0, head_dim, 16):
        sums = load_rows(like, desk, SUM + d, DIM_STRIDE)
        for j in range(count):
            value = sixteen(tag, v, load(int64, bases, cell + j), d)
            if keep:
                store(desk, VALUE + j * head_dim + d, value)
            if line_begins(tag, d):
                prefetch(v, load(int64, bases, cell + AHEAD + j) + start_of(tag, d), 2)
            sums = fma_rows(sums, value, desk, WEIGHT + cell + j, CELL_STRIDE)
        store_rows(desk, SUM + d, DIM_STRIDE, sums)


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
        _first_values(zeros(f32x16, 1), tag, v, bases, desk, head_dim, cell, count, keep)


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
