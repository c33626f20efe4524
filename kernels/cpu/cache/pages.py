"""page_extremes, page_scores and choose_pages on the CPU.

Channels of keys, pages, or lists are split among threads. The queries of a chooser are summed,
positive and negative parts separately, since they multiply the same extremes: a page costs as much
for eight query heads as for one. Selection needs no sort: the lowest chosen score is searched bit
by bit, as an integer that orders like scores, sixteen scores at a time.
"""

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.formats.cache_rows import sixteen
from kernels.cpu.formats.decoding import TAGS, FormatTag, element
from kernels.cpu.isa.simd import (
    CACHE_LINE,
    add,
    convert,
    f16x16,
    f32x16,
    fma,
    load,
    maximum,
    minimum,
    prefetch,
    splat,
    store,
    sum_lanes,
    where_above,
    zero,
)
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import arguments, by_format, part, share
from kernels.shapes import in_place
from reference.cache.pages import CHOICE, EXTREMES, FORMATS_OF_PAGES, SCORES
from reference.formats import FORMATS
from reference.op import Shape

EXTREMES_ONTO, SCORES_ONTO, CHOICE_ONTO = map(in_place, (EXTREMES, SCORES, CHOICE))
LANES = {"F32": f32x16, "F16": f16x16}
WIDEST = 1024  # head_dim of a chooser's queries, at most
WORKSPACE = 2 * WIDEST
AHEAD = 4096  # prefetch distance of extremes, in bytes
INFINITE = 0x7F800000  # the bits of a float32
LEAST, MOST = 2**31 - INFINITE, 2**31 + INFINITE  # the keys of minus infinity and of infinity


def fits(shape: Shape) -> bool:
    return shape["head_dim"] <= WIDEST


def extremes(tag: FormatTag) -> Callable[..., None]:
    size, lanes = FORMATS[tag.format].block_bytes, LANES[tag.format]

    @njit(inline="always")
    def sixteen_of(k, lists, s, first, end, d, out, least, most):
        """Extremes of sixteen channels from d, to bytes `least` and `most` of `out`."""
        low = high = sixteen(tag, k, lists[s, first] * k.shape[1], d)
        for j in range(first + 1, end):
            value = sixteen(tag, k, lists[s, j] * k.shape[1], d)
            low, high = minimum(value, low), maximum(value, high)
        store(out, least, convert(lanes, low))
        store(out, most, convert(lanes, high))

    @njit(inline="always")
    def one_of(k, lists, s, first, end, d, out, least, most):
        """Extremes of one channel."""
        lowest = highest = lists[s, first]
        for j in range(first + 1, end):
            value = element(tag, k[lists[s, j]], d)
            if value < element(tag, k[lowest], d):
                lowest = lists[s, j]
            if value > element(tag, k[highest], d):
                highest = lists[s, j]
        for i in range(size):
            out[least + i] = k[lowest, d * size + i]
            out[most + i] = k[highest, d * size + i]

    def page_extremes(args, thread, n_threads):
        k, lists, stale, page, out = arguments(args, EXTREMES_ONTO)
        sequences, kv_heads, pages, _, row = out.shape
        head_dim, flat = row // size, out.reshape(out.size)
        units = (head_dim + 15) // 16  # of a head
        begin, last = part(kv_heads * units, thread, n_threads)
        for s in range(sequences):
            for p in range(stale[s, 0], stale[s, 1]):
                first, end = p * page, (p + 1) * page
                for unit in range(begin, last):
                    g, d = unit // units, unit % units * 16
                    channel = g * head_dim + d
                    least = ((s * kv_heads + g) * pages + p) * 2 * row + d * size
                    if d + 16 <= head_dim:
                        sixteen_of(k, lists, s, first, end, channel, flat, least, least + row)
                    else:
                        for i in range(head_dim - d):
                            at = least + i * size
                            one_of(k, lists, s, first, end, channel + i, flat, at, at + row)

    return page_extremes


@inner
def load_query(q, t, h0, h1, workspace):
    """Sums over heads h0 to h1 of a token's queries, positive and negative parts."""
    head_dim = q.shape[2]
    for d in range(head_dim):
        above, below = np.float32(0), np.float32(0)
        for h in range(h0, h1):
            above += max(q[t, h, d], np.float32(0))
            below += min(q[t, h, d], np.float32(0))
        workspace[d], workspace[WIDEST + d] = above, below


def scores(tag: FormatTag) -> Callable[..., None]:
    def page_scores(args, thread, n_threads):
        q, extremes, spans, page, out = arguments(args, SCORES_ONTO)
        workspace = stack(np.float32, WORKSPACE)
        tokens, heads, head_dim = q.shape
        choosers, kv_heads, size = out.shape[1], extremes.shape[1], extremes.shape[4]
        flat = extremes.reshape(extremes.size)
        whole = head_dim // 16 * 16
        for t in range(tokens):
            if spans[t, 2] == 0:
                continue
            first, end = part((spans[t, 2] - 1) // page, thread, n_threads)
            for c in range(choosers if first < end else 0):
                load_query(q, t, c * heads // choosers, (c + 1) * heads // choosers, workspace)
                head = spans[t, 0] * kv_heads + c * kv_heads // choosers
                for p in range(first, end):
                    least = (head * extremes.shape[2] + p) * 2 * size
                    most = least + size
                    low, high = zero(f32x16), zero(f32x16)
                    for at in range(0, 2 * size, CACHE_LINE):
                        prefetch(flat, least + AHEAD + at, 2)
                    for d in range(0, whole, 16):
                        high = fma(sixteen(tag, flat, most, d), load(f32x16, workspace, d), high)
                        low = fma(
                            sixteen(tag, flat, least, d), load(f32x16, workspace, WIDEST + d), low
                        )
                    total = sum_lanes(add(low, high))
                    for d in range(whole, head_dim):
                        total += element(tag, flat[most:], d) * workspace[d]
                        total += element(tag, flat[least:], d) * workspace[WIDEST + d]
                    out[t, c, p] = total

    return page_scores


@intrinsic
def ordered(typing, key):
    """The float32 whose prefix.key_of is this integer."""

    def codegen(context, builder, signature, values):
        half = ir.Constant(values[0].type, 2**31)
        signed = builder.sub(values[0], half)
        below = builder.icmp_signed("<", signed, ir.Constant(values[0].type, 0))
        minus = builder.or_(builder.neg(signed), half)
        bits = builder.trunc(builder.select(below, minus, signed), ir.IntType(32))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.int64), codegen


@njit(inline="always")
def above(scores, begin, count, bar):
    """How many of `count` scores are above this one."""
    total, one, bars = zero(f32x16), splat(f32x16, 1.0), splat(f32x16, bar)
    whole = count // 16 * 16
    for j in range(0, whole, 16):
        total = add(total, where_above(load(f32x16, scores, begin + j), bars, one))
    found = np.int64(sum_lanes(total))
    for j in range(whole, count):
        found += scores[begin + j] > bar
    return found


@inner
def threshold(scores, begin, count, wanted):
    """The last of the best `wanted` of `count` scores, and how many are above it."""
    lowest, beyond = LEAST - 1, MOST  # as many as wanted are above the one, fewer above the other
    while beyond - lowest > 1:
        middle = (lowest + beyond) // 2
        if above(scores, begin, count, ordered(middle)) >= wanted:
            lowest = middle
        else:
            beyond = middle
    bar = ordered(beyond)
    return bar, above(scores, begin, count, bar)


@njit(inline="always")
def enter(cells, kv_heads, head, rows):
    """Write the rows that these cells have for a head."""
    for i in range(len(rows)):
        rows[i] = cells[i] * kv_heads + head


@share(CHOICE_ONTO)
def choose_pages(args, thread, n_threads):
    scores, lists, spans, page, chosen, kv_heads, out, chosen_spans = arguments(args, CHOICE_ONTO)
    tokens, choosers, pages = scores.shape
    flat = scores.reshape(scores.size)
    room = min(chosen * page, out.shape[1])
    first, last_list = part(tokens * choosers, thread, n_threads)
    for item in range(first, last_list):
        t, c = item // choosers, item % choosers
        sequence, end = spans[t, 0], spans[t, 2]
        each = out.shape[1] // max(1, room)
        row, begin = item // each, item % each * room
        if end == 0:
            chosen_spans[item, 0] = chosen_spans[item, 1] = chosen_spans[item, 2] = 0
            continue
        last, at, head = (end - 1) // page, begin, c * kv_heads // choosers
        bar, equals = np.float32(-np.inf), last
        if last > chosen - 1:
            bar, more = threshold(flat, item * pages, last, chosen - 1)
            equals = chosen - 1 - more
        for p in range(last + 1):
            score = flat[item * pages + p] if p < last else np.float32(np.inf)
            if p == last or score > bar or (score == bar and equals > 0):
                equals -= p < last and score == bar
                count = min(page, end - p * page, begin + room - at)
                cells = lists[sequence, p * page : p * page + count]
                enter(cells, np.int32(kv_heads), np.int32(head), out[row, at : at + count])
                at += count
        chosen_spans[item, 0] = row
        chosen_spans[item, 1], chosen_spans[item, 2] = begin, at


OF_PAGES = {name: TAGS[name] for name in FORMATS_OF_PAGES}
EXTREMES_SHARES = by_format(extremes, EXTREMES_ONTO, OF_PAGES)
SCORES_SHARES = by_format(scores, SCORES_ONTO, OF_PAGES)
