"""attention on the CPU: flash attention (Dao et al., arXiv 2205.14135) in chunks of cells.

The heads that share a KV head, of a few neighbouring tokens, make a tile (attention_tile.py). A
token's cells, counted from the first it sees, make chunks of CHUNK. Each gives a partial result,
head_dim + 2 floats: the weighted sum of values, the highest score and the sum of weights. Chunks
merge in order, whoever did them, so neither batch nor threads nor where a cell lies changes a bit.

- With up to FEW tokens every chunk of a tile is an item of work, and its partial results wait in
  `scratch` [tokens, heads, chunks of the capacity, head_dim + 2] for the second share to merge.
- With more tokens a tile is an item, and chunks merge as they come.

Items are dealt out in turns, those of most cells first. Where there are SEVERAL chunks for a thread
it has all heads of one, and asks meanwhile for whole rows of its next, a part of them with each
head; its first it asks for before. Those of one head, a few cells ahead, come too late.
"""

from collections.abc import Callable

import numpy as np
from numba import njit

from kernels.cpu.attention.attention_sums import (
    AHEAD,
    BASES,
    CHUNK,
    DIM_STRIDE,
    MERGED,
    QUERIES,
    SUM,
    WIDEST,
    WORKSPACE,
)
from kernels.cpu.attention.attention_tile import (
    SIGNATURE,
    attend,
    chunks_of,
    dividing,
    finite,
    load_queries,
    most_seen,
    part_of_rows,
    rows_of_head,
)
from kernels.cpu.formats.cache_rows import start_of
from kernels.cpu.formats.decoding import TAGS, FormatTag
from kernels.cpu.isa.simd import (
    CACHE_LINE,
    extract,
    f32x16,
    fma,
    load,
    mul,
    prefetch,
    splat,
    store,
    zero,
)
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, by_format, part
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.op import Shape

FEW = 8  # tokens
SEVERAL = 4  # chunks of a thread from which on it has all heads of each
MERGE_SIGNATURE = (
    "lists: i32[sequences capacity], spans: i32[tokens 3], sinks: f32[heads],"
    " scratch: f32[partials] -> out: f32[tokens heads head_dim]"
)


def whole_vectors(shape: Shape) -> bool:
    """What `generic` takes of float caches: a head_dim of whole vectors, up to the widest."""
    return shape["head_dim"] % 16 == 0 and shape["head_dim"] <= WIDEST


def whole_blocks(shape: Shape) -> bool:
    """And of quantised ones: no block spans two heads."""
    return whole_vectors(shape) and shape["head_dim"] % 32 == 0


def partials(shape: Shape) -> int:
    """Floats of scratch."""
    chunks = -(-shape["capacity"] // CHUNK)
    return min(shape["tokens"], FEW) * shape["heads"] * chunks * (shape["head_dim"] + 2)


@inner
def copy(to, t, source, s, head_dim):
    """Copy a partial result from source[s:] to to[t:]."""
    for d in range(0, head_dim, 16):
        store(to, t + d, load(f32x16, source, s + d))
    to[t + head_dim] = source[s + head_dim]
    to[t + head_dim + 1] = source[s + head_dim + 1]


@inner
def merge(to, t, source, s, head_dim):
    """Merge the partial result at source[s:] into the one at to[t:]."""
    high, higher = to[t + head_dim], source[s + head_dim]
    highest = max(high, higher)
    shrink = exp(splat(f32x16, high - finite(highest)))
    shrink_source = exp(splat(f32x16, higher - finite(highest)))
    for d in range(0, head_dim, 16):
        before = mul(load(f32x16, to, t + d), shrink)
        store(to, t + d, fma(load(f32x16, source, s + d), shrink_source, before))
    total = to[t + head_dim + 1] * extract(shrink, 0)
    to[t + head_dim] = highest
    to[t + head_dim + 1] = total + source[s + head_dim + 1] * extract(shrink_source, 0)


@inner
def finish(out, o, cells, sink, source, s, head_dim):
    """Write the output at out[o:], from the partial result over all of a token's cells and the
    sink."""
    high, total, shrink = source[s + head_dim], source[s + head_dim + 1], np.float32(1)
    if sink != -np.inf:
        highest = finite(max(high, sink))
        shrink = extract(exp(splat(f32x16, high - highest)), 0)
        total = total * shrink + extract(exp(splat(f32x16, sink - highest)), 0)
    inverse = splat(f32x16, shrink / total)
    for d in range(0, head_dim, 16):
        mean = mul(load(f32x16, source, s + d), inverse)
        store(out, o + d, mean if cells > 0 else zero(f32x16))


@njit(inline="always")
def end_of_run(spans, first, last):
    """The end of the tokens from `first` whose cells begin at the same one."""
    t = first + 1
    while t < last and spans[t, 0] == spans[first, 0] and spans[t, 1] == spans[first, 1]:
        t += 1
    return t


@inner
def prefetch_rows(data, cells):
    """Prefetch the rows of all these cells at once."""
    for c in range(len(cells)):
        at = cells[c] * data.shape[1]
        for line in range(at, at + data.shape[1], CACHE_LINE):
            prefetch(data, line, 2)


@njit(inline="always")
def item_of(turn, together, units, thread, n_threads):
    """A thread's item in its turn: first those of whole chunks, whose heads' rows are adjacent; the
    rest is assigned item by item."""
    if turn < together:
        return (turn // units * n_threads + thread) * units + turn % units
    return turn * n_threads + thread


def flash(tag: FormatTag) -> Callable[..., None]:
    sizes_of, place_of = dividing(tag, QUERIES)

    def generic(args, thread, n_threads):
        q, k, v, lists, spans, _, _, _, sinks, _, _, scratch, out = arguments(args, SIGNATURE)
        workspace = stack(np.float32, WORKSPACE)
        bases, places = stack(np.int64, BASES), stack(np.int32, CHUNK)
        tokens, heads, head_dim = q.shape
        units, sizes = sizes_of(q, k)
        split, chunks = tokens <= FEW, chunks_of(lists.shape[1])
        count, size = 1, start_of(tag, head_dim)
        if split:
            count = chunks_of(most_seen(spans, 0, tokens))
        rounds = count // n_threads if count >= SEVERAL * n_threads else 0
        together = rounds * units  # turns that make whole chunks
        for turn in range((count * units + n_threads - 1 - thread) // n_threads):
            item = item_of(turn, together, units, thread, n_threads)
            h0, h1, column, t1, last_token = place_of(item % units, sizes)
            while t1 < last_token:
                t0, t1 = t1, end_of_run(spans, t1, last_token)
                load_queries(q, workspace, t0, t1, h0, h1)
                first, last = np.int64(0), chunks_of(most_seen(spans, t0, t1))
                if split:
                    first = item // units
                    last = min(last, first + 1)
                if turn == 0 and together and first < last:
                    begin = spans[t0, 1] + first * CHUNK
                    own = lists[spans[t0, 0], begin : min(begin + CHUNK, spans[t1 - 1, 2])]
                    prefetch_rows(k, own)
                    prefetch_rows(v, own)
                for chunk in range(first, last):
                    if turn < together:
                        later = min(chunk + n_threads, count - 1) * CHUNK
                        asked = part_of_rows(column, size, later, k.shape[1])
                    else:
                        asked = rows_of_head(column, chunk * CHUNK + AHEAD)
                    attend(
                        tag, args, workspace, bases, places, t0, t1, h0, h1, column, chunk, asked
                    )
                    for t in range(t0, t1):
                        for h in range(h0, h1):
                            row = ((t - t0) * (h1 - h0) + h - h0) * DIM_STRIDE
                            if split:
                                slot = ((t * heads + h) * chunks + chunk) * (head_dim + 2)
                                copy(scratch, slot, workspace, SUM + row, head_dim)
                            elif chunk == 0:
                                copy(workspace, MERGED + row, workspace, SUM + row, head_dim)
                            elif spans[t, 2] - spans[t, 1] > chunk * CHUNK:
                                merge(workspace, MERGED + row, workspace, SUM + row, head_dim)
                if not split:
                    for t in range(t0, t1):
                        for h in range(h0, h1):
                            row = MERGED + ((t - t0) * (h1 - h0) + h - h0) * DIM_STRIDE
                            cells = spans[t, 2] - spans[t, 1]
                            at = (t * heads + h) * head_dim
                            finish(out, at, cells, sinks[h], workspace, row, head_dim)

    return generic


def merge_chunks(args, thread, n_threads):
    """The second share: merge the chunks of few tokens."""
    lists, spans, sinks, scratch, out = arguments(args, MERGE_SIGNATURE)
    tokens, heads, head_dim = out.shape
    chunks, step = chunks_of(lists.shape[1]), head_dim + 2
    first, last = part(tokens * heads, thread, n_threads)
    if tokens <= FEW:
        for item in range(first, last):
            cells = spans[item // heads, 2] - spans[item // heads, 1]
            slot = item * chunks * step
            for chunk in range(1, chunks_of(cells)):
                merge(scratch, slot, scratch, slot + chunk * step, head_dim)
            finish(out, item * head_dim, cells, sinks[item % heads], scratch, slot, head_dim)


SHARES = by_format(flash, SIGNATURE, {name: TAGS[name] for name in FORMATS_OF_CACHE})
TAKES = {n: whole_vectors if FORMATS[n].block == 1 else whole_blocks for n in FORMATS_OF_CACHE}
MERGE = Share(lambda: merge_chunks, MERGE_SIGNATURE)
