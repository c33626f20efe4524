"""stripe_sums, block_scores and prompt_pattern on the CPU.

stripe_sums has attention's tiles and chunks, without values: a head's queries meet all keys twice,
for the sums of their weights and for the weights. An item of work is a head, so that its sums have
one order whatever threads there are. block_scores has the means of keys in `scratch` [kv_heads,
parts, head_dim], which the second share multiplies. prompt_pattern finds the best as keep_top does.
"""

from collections.abc import Callable

import numpy as np
from numba import njit

from kernels.cpu.attention.attention_received import below
from kernels.cpu.attention.attention_sums import (
    AHEAD,
    ASKED,
    BASES,
    CELL_STRIDE,
    CHUNK,
    OWN,
    QUERIES,
    SUM,
    WEIGHT,
    WIDEST,
    WORKSPACE,
    dots,
    query_of,
)
from kernels.cpu.attention.attention_tile import WHOLE, chunks_of, find_rows, weigh
from kernels.cpu.cache.keep_cells import reaching
from kernels.cpu.formats.cache_rows import sixteen
from kernels.cpu.formats.decoding import TAGS, FormatTag
from kernels.cpu.isa.simd import (
    add,
    f32x16,
    fma,
    load,
    load_first,
    mul,
    reverse,
    splat,
    store,
    store_first,
    sum_lanes,
    zero,
)
from kernels.cpu.isa.simd_shuffle import first_lanes, stack
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, by_format, share
from kernels.cpu.samplers.prefix import key_of
from kernels.shapes import in_place
from reference.attention.pattern_attention import BLOCK
from reference.attention.prompt_patterns import A_SHAPE, PATTERN, SCORES, SUMS, VERTICAL_SLASH
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.op import Shape

OF_SUMS = in_place(SUMS)
OF_SCORES, OF_PATTERN = in_place(SCORES, "partials"), in_place(PATTERN, "partials")


@inner
def weights_of(tag, args, workspace, bases, whose, rows, column, chunk):
    """A chunk's weights relative to its own highest score, as rows of WEIGHT, of the tokens
    `whose`; the highest score of each row and its sum of weights to SUM."""
    q, k, lists, spans, scale, softcap, _, _ = arguments(args, OF_SUMS)
    begin, most, sequence = chunk * CHUNK, np.int64(0), spans[whose[0], 0]
    for row in range(rows):
        most = max(most, min(spans[whose[row], 2] - begin, np.int64(CHUNK)))
    cells = lists[sequence, : begin + most if most < CHUNK else lists.shape[1]]
    find_rows(bases, OWN, cells, begin, most, k.shape[1], column, WHOLE)
    find_rows(bases, ASKED, cells, begin + AHEAD, most, k.shape[1], column, WHOLE)
    dots(tag, k, bases, workspace, q.shape[2], rows, most)
    none, places = np.float32(0), stack(np.int32, CHUNK)  # irrelevant without slopes
    for row in range(rows):
        seen = max(0, min(spans[whose[row], 2] - begin, CHUNK))
        highest, total = weigh(workspace, row, seen, scale, softcap, none, np.int32(0), places)
        workspace[SUM + 2 * row], workspace[SUM + 2 * row + 1] = highest, total


@njit(inline="always")
def scale_row(workspace, row, seen, factor):
    """Scale a row's weights of the `seen` cells of a chunk; those of later cells become zero."""
    for c in range(0, CHUNK, 16):
        at = WEIGHT + row * CELL_STRIDE + c
        scaled = mul(load(f32x16, workspace, at), splat(f32x16, factor))
        store(workspace, at, first_lanes(scaled, max(0, min(seen - c, 16)), zero(f32x16)))


@inner
def add_columns(out, first, workspace, rows, seen):
    """Add the weights of a chunk's cells, row after row, to the cells' sums from out[first:]."""
    for c in range(0, min(seen, CHUNK), 16):
        count = min(seen - c, 16)
        total = load_first(f32x16, out, first + c, count)
        for row in range(rows):
            total = add(total, load(f32x16, workspace, WEIGHT + row * CELL_STRIDE + c))
        store_first(out, first + c, total, count)


@inner
def add_diagonals(out, first, workspace, ends, rows, most):
    """The same to the distances' sums from out[first:]: row r sees ends[r] cells from the chunk's
    first, at most `most`, the last being nearest to it."""
    nearest = most
    for row in range(rows):
        nearest = min(nearest, ends[row])
    for d in range(max(0, nearest - CHUNK), most, 16):
        count = min(most - d, 16)
        total = reverse(load_first(f32x16, out, first + d, count))
        for row in range(rows):
            c = ends[row] - d - 16  # to c + 15, of which what is no cell of the chunk is none
            if -16 < c < CHUNK:
                total = add(total, load(f32x16, workspace, WEIGHT + row * CELL_STRIDE + c))
        store_first(out, first + d, reverse(total), count)


def stripes(tag: FormatTag) -> Callable[..., None]:
    block_elements, block_bytes = FORMATS[tag.format].block, FORMATS[tag.format].block_bytes

    def stripe_sums(args, thread, n_threads):
        q, k, _, spans, _, _, last, out = arguments(args, OF_SUMS)
        workspace, bases = stack(np.float32, WORKSPACE), stack(np.int64, BASES)
        whose, tops = stack(np.int64, QUERIES), stack(np.float32, QUERIES)
        totals, ends = stack(np.float32, QUERIES), stack(np.int64, QUERIES)
        tokens, heads, head_dim = q.shape
        capacity = out.shape[2]
        for row in range(-1, QUERIES):  # what lies outside a row's cells weighs nothing
            store(workspace, WEIGHT + row * CELL_STRIDE + CHUNK, zero(f32x16))
        group = heads // (k.shape[1] // block_bytes * block_elements // head_dim)
        for h in range(thread, heads, n_threads):
            column = h // group * (head_dim // block_elements * block_bytes)
            t, observed = tokens, 0
            while t > 0 and observed < last:
                rows, most = 0, np.int64(0)
                while t > 0 and rows < QUERIES and observed < last:
                    t -= 1
                    if spans[t, 2] > 0:
                        whose[rows], most = t, max(most, spans[t, 2])
                        for d in range(head_dim):
                            workspace[query_of(rows) + 8 * d] = q[t, h, d]
                        rows, observed = rows + 1, observed + 1
                if rows == 0:
                    break
                if observed == rows:  # the first tile
                    out[h, :, :] = 0
                for chunk in range(chunks_of(most)):
                    weights_of(tag, args, workspace, bases, whose, rows, column, chunk)
                    for row in range(rows):
                        high, total = workspace[SUM + 2 * row], workspace[SUM + 2 * row + 1]
                        if chunk == 0:
                            tops[row], totals[row] = high, total
                        elif spans[whose[row], 2] > chunk * CHUNK:
                            top = max(tops[row], high)
                            before = totals[row] * below(tops[row], top)
                            tops[row], totals[row] = top, before + total * below(high, top)
                for chunk in range(chunks_of(most)):
                    weights_of(tag, args, workspace, bases, whose, rows, column, chunk)
                    begin = chunk * CHUNK
                    for row in range(rows):
                        ends[row] = spans[whose[row], 2] - begin
                        factor = below(workspace[SUM + 2 * row], tops[row]) / totals[row]
                        scale_row(workspace, row, ends[row], factor)
                    add_columns(out, 2 * h * capacity + begin, workspace, rows, most - begin)
                    add_diagonals(out, (2 * h + 1) * capacity, workspace, ends, rows, most - begin)

    return stripe_sums


def means_of_keys(shape: Shape) -> int:
    """Floats of scratch."""
    return shape["kv_heads"] * shape["parts"] * shape["head_dim"]


@njit(inline="always")
def held_by(spans):
    """How many cells the last token sees, and a token that has some."""
    held, one = np.int64(0), np.int64(0)
    for t in range(len(spans)):
        if spans[t, 2] > held:
            held, one = np.int64(spans[t, 2]), np.int64(t)
    return held, one


def means(tag: FormatTag) -> Callable[..., None]:
    block_elements, block_bytes = FORMATS[tag.format].block, FORMATS[tag.format].block_bytes

    def block_scores(args, thread, n_threads):
        q, k, lists, spans, scratch, out = arguments(args, OF_SCORES)
        head_dim, parts = q.shape[2], out.shape[2]
        kv_heads = k.shape[1] // block_bytes * block_elements // head_dim
        held, one = held_by(spans)
        for part in range(thread, (held + BLOCK - 1) // BLOCK, n_threads):
            begin, end = part * BLOCK, min((part + 1) * BLOCK, held)
            count = splat(f32x16, np.float32(1) / np.float32(end - begin))
            for g in range(kv_heads):
                column = g * (head_dim // block_elements * block_bytes)
                at = (g * parts + part) * head_dim
                for d in range(0, head_dim, 16):
                    total = zero(f32x16)
                    for j in range(begin, end):
                        base = lists[spans[one, 0], j] * k.shape[1] + column
                        total = add(total, sixteen(tag, k, base, d))
                    store(scratch, at + d, mul(total, count))

    return block_scores


def multiply(args, thread, n_threads):
    """The second share of block_scores: means of queries, times those of keys."""
    q, _, _, spans, scratch, out = arguments(args, OF_SCORES)
    tokens, heads, head_dim = q.shape
    rows, parts = out.shape[1], out.shape[2]
    group, mean = heads * parts * head_dim // len(scratch), stack(np.float32, WIDEST)
    for h in range(thread, heads, n_threads):
        t1 = 0
        while t1 < tokens:
            if spans[t1, 2] <= 0:
                t1 += 1
                continue
            t0, b = t1, (spans[t1, 2] - 1) // BLOCK
            while t1 < tokens and spans[t1, 2] > 0 and (spans[t1, 2] - 1) // BLOCK == b:
                t1 += 1
            count = splat(f32x16, np.float32(1) / np.float32(t1 - t0))
            for d in range(0, head_dim, 16):
                total = zero(f32x16)
                for t in range(t0, t1):
                    total = add(total, load(f32x16, q, (t * heads + h) * head_dim + d))
                store(mean, d, mul(total, count))
            for part in range(b + 1):
                at, dot = (h // group * parts + part) * head_dim, zero(f32x16)
                for d in range(0, head_dim, 16):
                    dot = fma(load(f32x16, mean, d), load(f32x16, scratch, at + d), dot)
                out[h, b % rows, part] = sum_lanes(dot)


def lists_of_stripes(shape: Shape) -> int:
    """Floats of scratch, as integers: of each head the best columns and diagonals, ascending."""
    return 2 * shape["heads"] * shape["capacity"]


@njit(inline="always")
def choose(scores, held, count, first, chosen):
    """The first slots, and in all as many as requested of the highest, ascending, to `chosen`: ->
    how many."""
    first = min(first, held)
    wanted = min(max(count, first), held) - first
    lowest, beyond = 0, 2**32  # at least as many as wanted reach the one, not the other
    while beyond - lowest > 1:
        middle = (lowest + beyond) // 2
        if reaching(scores, first, held, middle) >= wanted:
            lowest = middle
        else:
            beyond = middle
    equals, found = wanted - reaching(scores, first, held, lowest + 1), 0
    for j in range(held):
        key = key_of(scores[j])
        if j < first or key > lowest or (key == lowest and equals > 0):
            equals -= j >= first and key == lowest
            chosen[found] = j
            found += 1
    return found


@njit(inline="always")
def fill(row, first, last, value):
    for j in range(first, last):
        row[j] = value


@share(OF_PATTERN)
def prompt_pattern(args, thread, n_threads):
    kinds, sizes, sums, scores, spans, first, recent, scratch, out = arguments(args, OF_PATTERN)
    heads, rows, capacity = out.shape
    held, _ = held_by(spans)
    for h in range(thread, heads if held else 0, n_threads):
        lists = scratch.view(np.int32)[2 * h * capacity : 2 * (h + 1) * capacity]
        upright, slanted, n_upright, n_slanted = lists[:capacity], lists[capacity:], 0, 0
        one, other = np.int64(sizes[h, 0]), np.int64(sizes[h, 1])
        if kinds[h] == VERTICAL_SLASH:
            n_upright = choose(sums[h, 0], held, one, first, upright)
            n_slanted = choose(sums[h, 1], held, other, recent, slanted)
        b = np.int64(-1)
        for t in range(len(spans)):
            if spans[t, 2] <= 0 or (spans[t, 2] - 1) // BLOCK == b:
                continue
            b = np.int64(spans[t, 2] - 1) // BLOCK
            begin, end, sees = b * BLOCK, min((b + 1) * BLOCK, held), out[h, b % rows]
            fill(sees, 0, capacity, 0)
            if kinds[h] == A_SHAPE:
                fill(sees, 0, min(one, end), 1)
                fill(sees, max(0, begin - other + 1), end, 1)
            elif kinds[h] == VERTICAL_SLASH:
                for i in range(n_upright):
                    if upright[i] < end:
                        sees[upright[i]] = 1
                above = end  # cells beyond are covered by nearer diagonals
                for i in range(n_slanted):
                    low = max(0, begin - slanted[i])
                    high = min(begin + BLOCK - slanted[i], above)
                    fill(sees, low, high, 1)
                    above = min(above, low)
            else:
                n = choose(scores[h, b % rows], b + 1, one, 0, upright)
                for i in range(n):
                    at = upright[i] * BLOCK
                    fill(sees, at, min(at + BLOCK, end), 1)


OF_CACHE = {name: TAGS[name] for name in FORMATS_OF_CACHE}
SUM_SHARES = by_format(stripes, OF_SUMS, OF_CACHE)
SCORE_SHARES = by_format(means, OF_SCORES, OF_CACHE)
THEN = Share(lambda: multiply, OF_SCORES)
