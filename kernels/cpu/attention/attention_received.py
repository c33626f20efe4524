"""attention_received on the CPU, by the tiles and chunks of attention.py, without its values.

A first share finds, for each token's chunks, the highest score and the sum of weights relative to
it, stored in `scratch` [tokens, heads, chunks of the capacity, 2]. The second recomputes the
weights and adds them up: an item is some chunks of one KV head, to whose cells token after token
adds, and of each head after head, so that neither threads nor how a prompt is split into steps
changes a bit.
"""

import math
from collections.abc import Callable

import numpy as np

from kernels.cpu.attention.attention import end_of_run
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
    WORKSPACE,
    dots,
)
from kernels.cpu.attention.attention_tile import (
    WHOLE,
    chunks_of,
    dividing,
    find_rows,
    finite,
    load_queries,
    most_seen,
    weigh,
)
from kernels.cpu.formats.decoding import TAGS, FormatTag, element
from kernels.cpu.isa.simd import extract, f32x16, splat
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import arguments, by_format, part
from kernels.shapes import in_place
from reference.attention.attention_received import OP
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats import FORMATS
from reference.op import Shape

SIGNATURE = in_place(OP.signature, "partials")
PLAIN = in_place(OP.signature)
OF_ROWS = 2 * QUERIES  # a tile's highest scores, and sums of weights


def partials(shape: Shape) -> int:
    """Floats of scratch."""
    return 2 * shape["tokens"] * shape["heads"] * -(-shape["capacity"] // CHUNK)


@inner
def weights_of(tag, args, workspace, bases, t0, t1, h0, h1, column, chunk):
    """A chunk's weights relative to its own highest score, as rows of WEIGHT, for tokens t0 to t1,
    whose cells begin at the same one, and heads h0 to h1 of the KV head at byte `column`; the
    highest score of each row and its sum of weights to SUM."""
    q, k, lists, spans, scale, softcap, _, _ = arguments(args, SIGNATURE)
    head_dim, width, sequence = q.shape[2], h1 - h0, spans[t0, 0]
    begin = spans[t0, 1] + chunk * CHUNK
    most = min(most_seen(spans, t0, t1) - chunk * CHUNK, CHUNK)
    if most <= 0:
        return
    load_queries(q, workspace, t0, t1, h0, h1)
    cells = lists[sequence, : begin + most if most < CHUNK else lists.shape[1]]
    find_rows(bases, OWN, cells, begin, most, k.shape[1], column, WHOLE)
    find_rows(bases, ASKED, cells, begin + AHEAD, most, k.shape[1], column, WHOLE)
    dots(tag, k, bases, workspace, head_dim, (t1 - t0) * width, most)
    places = stack(np.int32, CHUNK)  # irrelevant without slopes
    for t in range(t0, t1):
        seen = max(0, min(spans[t, 2] - begin, CHUNK))
        for h in range(h0, h1):
            row = (t - t0) * width + h - h0
            none = np.float32(0)
            highest, total = weigh(workspace, row, seen, scale, softcap, none, np.int32(0), places)
            workspace[SUM + 2 * row], workspace[SUM + 2 * row + 1] = highest, total


@inner
def below(score, highest):
    """exp(score - highest)."""
    return extract(exp(splat(f32x16, score - finite(highest))), 0)


@inner
def whole(scratch, first, chunks, found, at):
    """The highest score of a token's chunks, whose results begin at `first` in scratch, and the sum
    of weights relative to it, to found[at:]."""
    highest = scratch[first]
    for chunk in range(1, chunks):
        highest = max(highest, scratch[first + 2 * chunk])
    total = np.float32(0)
    for chunk in range(chunks):
        shrink = below(scratch[first + 2 * chunk], highest)
        total += scratch[first + 2 * chunk + 1] * shrink
    found[at], found[at + 1] = highest, total


def finding(tag: FormatTag) -> Callable[..., None]:
    sizes_of, place_of = dividing(tag, QUERIES)

    def generic(args, thread, n_threads):
        q, k, lists, spans, _, _, scratch, _ = arguments(args, SIGNATURE)
        workspace, bases = stack(np.float32, WORKSPACE), stack(np.int64, BASES)
        tokens, heads, _ = q.shape
        units, sizes = sizes_of(q, k)
        all_chunks, chunks = chunks_of(lists.shape[1]), np.int64(0)
        for t in range(tokens):
            chunks = max(chunks, chunks_of(spans[t, 2] - spans[t, 1]))
        for item in range(thread, units * chunks, n_threads):
            chunk = item % chunks
            h0, h1, column, t1, last = place_of(item // chunks, sizes)
            while t1 < last:
                t0, t1 = t1, end_of_run(spans, t1, last)
                weights_of(tag, args, workspace, bases, t0, t1, h0, h1, column, chunk)
                for t in range(t0, t1):
                    for h in range(h0, h1):
                        if spans[t, 2] > spans[t, 1] + chunk * CHUNK:
                            row = SUM + 2 * ((t - t0) * (h1 - h0) + h - h0)
                            at = 2 * ((t * heads + h) * all_chunks + chunk)
                            scratch[at], scratch[at + 1] = workspace[row], workspace[row + 1]

    return generic


def adding(tag: FormatTag) -> Callable[..., None]:
    layout = FORMATS[tag.format]
    block_elements, block_bytes = layout.block, layout.block_bytes

    def add_up(args, thread, n_threads):
        q, _, lists, spans, _, _, scratch, out = arguments(args, SIGNATURE)
        workspace, bases = stack(np.float32, WORKSPACE), stack(np.int64, BASES)
        sums = stack(np.float32, OF_ROWS)
        tokens, heads, head_dim = q.shape
        kv_heads, all_chunks = out.shape[1], chunks_of(lists.shape[1])
        group, chunks = heads // kv_heads, np.int64(0)
        slices = (group + QUERIES - 1) // QUERIES
        width = (group + slices - 1) // slices
        height = QUERIES // width if slices == 1 else 1
        for t in range(tokens):
            chunks = max(chunks, chunks_of(spans[t, 2] - spans[t, 1]))
        for item in range(thread, kv_heads * n_threads, n_threads):
            kv_head, t1 = item // n_threads, 0
            first, last = part(chunks, (item + kv_head) % n_threads, n_threads)
            column = kv_head * (head_dim // block_elements * block_bytes)
            while t1 < tokens:
                t0, t1 = t1, end_of_run(spans, t1, min(tokens, t1 // height * height + height))
                for piece in range(slices):
                    h0 = kv_head * group + piece * width
                    h1 = min(h0 + width, (kv_head + 1) * group)
                    for t in range(t0, t1):
                        own = chunks_of(spans[t, 2] - spans[t, 1])
                        for h in range(h0, h1 if own > 0 else h0):
                            row = (t - t0) * (h1 - h0) + h - h0
                            at = 2 * (t * heads + h) * all_chunks
                            whole(scratch, at, own, sums, 2 * row)
                    for chunk in range(first, last):
                        begin = spans[t0, 1] + chunk * CHUNK
                        weights_of(tag, args, workspace, bases, t0, t1, h0, h1, column, chunk)
                        for t in range(t0, t1):
                            seen = min(spans[t, 2] - begin, CHUNK)
                            cells = out[spans[t, 0], kv_head]
                            for h in range(h0, h1 if seen > 0 else h0):
                                row = (t - t0) * (h1 - h0) + h - h0
                                shrink = below(workspace[SUM + 2 * row], sums[2 * row])
                                factor = shrink / sums[2 * row + 1]
                                at = WEIGHT + row * CELL_STRIDE
                                for c in range(seen):
                                    cells[begin + c] += workspace[at + c] * factor

    return add_up


def plain(tag: FormatTag) -> Callable[..., None]:
    def scalar(args, thread, n_threads):
        """For any head_dim, one element at a time: KV heads are split among threads."""
        q, k, lists, spans, scale, softcap, out = arguments(args, PLAIN)
        group = q.shape[1] // out.shape[1]
        first, last = part(out.shape[1], thread, n_threads)
        for kv_head in range(first, last):
            for t in range(len(q)):
                cells = lists[spans[t, 0]]
                for h in range(kv_head * group, (kv_head + 1) * group):
                    highest, total = -np.inf, 0.0
                    for passes in range(3):  # the largest score, the sum of weights, each of them
                        for j in range(spans[t, 1], spans[t, 2]):
                            row, score = k[cells[j]], 0.0
                            for d in range(q.shape[2]):
                                at = kv_head * q.shape[2] + d
                                score += float(q[t, h, d]) * element(tag, row, at)
                            score *= scale
                            if softcap != 0.0:
                                score = softcap * math.tanh(score / softcap)
                            if passes == 0:
                                highest = max(highest, score)
                            elif passes == 1:
                                total += math.exp(score - highest)
                            else:
                                weight = np.float32(math.exp(score - highest) / total)
                                out[spans[t, 0], kv_head, j] += weight

    return scalar


OF_CACHE = {name: TAGS[name] for name in FORMATS_OF_CACHE}
SHARES = by_format(finding, SIGNATURE, OF_CACHE)
THEN = by_format(adding, SIGNATURE, OF_CACHE)
SCALAR_SHARES = by_format(plain, PLAIN, OF_CACHE)
