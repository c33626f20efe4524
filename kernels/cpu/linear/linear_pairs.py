"""linear for block formats and prompts: two groups of rows at a time, lowered once for a panel.

Codes are unpacked to bytes, and integers to a unit's scales and offsets, for all tokens of a panel
at once. A tile is two groups by a few tokens: each broadcast word of activations is used for both,
so that loads are no bottleneck on a CPU with two units for dots. An output's chain is
linear_blocks.py's, and so are its bits. The next weights are prefetched while tiles are multiplied,
and so are outputs before they are stored.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.block_scales import beginning, integers_of, unit_offset, unit_scale
from kernels.cpu.formats.layouts import BLOCK, WORD_ROWS, Layout
from kernels.cpu.isa.simd import (
    f32x16,
    i8x64,
    i16x32,
    i32x16,
    load,
    store,
    store_first,
)
from kernels.cpu.isa.simd_shuffle import load_rows, stack, store_rows
from kernels.cpu.isa.tiles import (
    add_times,
    add_unit,
    add_unit_with_offset,
    in_tiles,
    load_tile,
    store_tile,
    zeros,
)
from kernels.cpu.linear import linear
from kernels.cpu.linear.linear import (
    FIRST,
    LANES,
    filling,
    from_here,
    prefetch_outputs,
    prefetch_part,
)
from kernels.cpu.linear.linear_halves import (
    add_halves,
    half_of,
    halves_fit,
    judging,
    never,
    raised,
)
from kernels.cpu.linear.linear_superblocks import dot_totals, pairs_at, pairs_of
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import part
from kernels.knob import Knob

WORDS = BLOCK // 4  # of a block's row
CODES = WORDS * WORD_ROWS  # bytes of a lowered block of a group
TILES = (6, 5, 4, 2, 1)  # the first of them is for pairs
SIZE, TALL = TILES[0], 2 * TILES[0] * LANES
TOKENS, DEEPEST = 192, 64  # of a panel: tokens, and blocks of each
SLICE = 16  # blocks that are lowered at a time, so that they stay in the first cache
ALL_SUMS = TOKENS // SIZE * TALL
PAIRS_FROM = Knob(
    "pairs_from",
    (16, 32, 64, 128, 0),
    32,
    "from how many tokens on groups meet them in pairs; 0: never",
    (16, 32, 64, 128),
    crossover=True,
)
HALVES = Knob("halves", (0, 1), 1, "whether two parts' dots share a word where they fit", (128,))
KNOBS = (*linear.KNOBS, PAIRS_FROM)
PAIRS_FROM_AT, HALVES_AT = len(linear.KNOBS), len(KNOBS)


def knobs_of(layout: Layout) -> tuple[Knob, ...]:
    return (*KNOBS, HALVES) if halves_fit(layout) else KNOBS


def lowering(layout: Layout, factor: float, codes_of: tuple[Any, Any]) -> Any:
    """(weight, at, depth, which, lowered): lower units of a group, as group `which` of a pair.

    `lowered` is (codes [blocks][2][CODES], pairs of integers [units][pairs][2][16 pairs], of mins
    like them, d f32 [units][2][16], m like it).
    """
    blocks, step, block_step = layout.blocks, layout.step, layout.block
    has_m, ends, pairs = layout.m, blocks * block_step, pairs_of(layout)
    scale, offset = unit_scale(layout, LANES, factor), unit_offset(layout, LANES)
    integers_at, mins_at = (pairs_at(layout, kind) for kind in integers_of(layout, LANES))
    first, second = codes_of

    @inner
    def lower(weight, at, depth, which, lowered):
        codes, integers, mins, scales, offsets = lowered
        for u in range(depth):
            base, place = at + u * step, (2 * u + which) * LANES
            store(scales, place, scale(weight, base + ends))
            if has_m:
                store(offsets, place, offset(weight, base + ends + 2 * LANES))
            for b in range(blocks):
                block = base + b * block_step
                to = (2 * (u * blocks + b) + which) * CODES
                store_rows(codes, to, WORD_ROWS, first(weight, block))
                store_rows(codes, to + CODES // 2, WORD_ROWS, second(weight, block))
            for pair in range(pairs):
                place = (2 * (u * pairs + pair) + which) * 2 * LANES
                store(integers, place, integers_at(weight, base, pair))
                if has_m:
                    store(mins, place, mins_at(weight, base, pair))

    return lower


@njit(inline="always")
def prefetch_outputs_of_two(out, token, row):
    """Prefetch the outputs where a tile's sums are stored next."""
    prefetch_outputs(out, token, SIZE, row)
    prefetch_outputs(out, token, SIZE, row + LANES)


@njit(inline="always")
def put_last(sums, at, out, end, row, left):
    """Store the sums of a tile's last `left` tokens, before token `end`, from sums[at:] to the
    outputs."""
    width = out.shape[1]
    for t in range(SIZE - left, SIZE):
        place, to = at + t * LANES, (end - SIZE + t) * width + row
        store_first(out, to, load(f32x16, sums, place), width - row)
        store_first(out, to + LANES, load(f32x16, sums, place + TALL // 2), width - row - LANES)


def add_parts(layout: Layout, dots_of_two: Any) -> tuple[Any, Any]:
    """Two functions of (totals, panel, lowered, k, where) -> totals, a tuple of both groups', plus
    the dots of superblock k, as lowered, times their integers: for any dots, and for those that fit
    into halves. `where` is its index in the panel."""
    blocks, parts, pairs = layout.blocks, layout.parts, pairs_of(layout)
    words, begin = WORDS // layout.parts, beginning(layout, LANES)

    @njit(inline="always")
    def dots_of(dots, q, codes, k, p, where):
        (a, b), block = dots, k * blocks + p // parts
        at = (where * blocks + p // parts * SIZE) * WORDS
        for w in range(p % parts * words, p % parts * words + words):
            v = load(i8x64, codes, 2 * block * CODES + w * WORD_ROWS)
            u = load(i8x64, codes, (2 * block + 1) * CODES + w * WORD_ROWS)
            a, b = dots_of_two(a, b, v, u, q, at + w * SIZE)
        return a, b

    @njit(inline="always")
    def any_dots(totals, panel, lowered, k, where):
        (q, _, extra), codes, integers = panel, lowered[0], lowered[1]
        a, b = totals
        for p in range(2 * pairs):
            place, half = 4 * (k * pairs + p // 2) * LANES, p % 2
            dots = begin(extra, 2 * where * pairs + p * SIZE, SIZE)
            dots, others = dots_of((dots, dots), q, codes, k, p, where)
            a = add_times(a, dots, half_of(load(i16x32, integers, place), half))
            b = add_times(b, others, half_of(load(i16x32, integers, place + 2 * LANES), half))
        return a, b

    @njit(inline="always")
    def halves(totals, panel, lowered, k, where):
        (q, _, extra), codes, integers = panel, lowered[0], lowered[1]
        a, b = totals
        for p in range(0, 2 * pairs, 2):
            place, at = 2 * (2 * k * pairs + p) * LANES, 2 * where * pairs + p * SIZE
            dots, below = begin(extra, at + SIZE, SIZE), begin(extra, at, SIZE)
            dots, others = dots_of((dots, dots), q, codes, k, p + 1, where)
            words = raised(dots, below), raised(others, below)
            dots, others = dots_of(words, q, codes, k, p, where)
            a = add_halves(a, dots, load(i16x32, integers, place))
            b = add_halves(b, others, load(i16x32, integers, place + 2 * LANES))
        return a, b

    return any_dots, halves


def add_superblocks(layout: Layout, dots_of_two: Any) -> Any:
    """(a, b, (q, scale, extra), lowered, k, where, fits) -> both sums plus superblock k, as
    lowered; `where` is its index in the panel, and `fits` whether its dots fit into halves."""
    pairs, has_m, may_fit = pairs_of(layout), layout.m, halves_fit(layout)
    any_dots, halves = add_parts(layout, dots_of_two)

    @njit(inline="always")
    def add(a, b, panel, lowered, k, where, fits):
        (_, scale, extra), (_, _, mins, scales, offsets) = panel, lowered
        totals = zeros(i32x16, SIZE), zeros(i32x16, SIZE)
        if may_fit and fits:
            totals, others_totals = halves(totals, panel, lowered, k, where)
        else:
            totals, others_totals = any_dots(totals, panel, lowered, k, where)
        place = 2 * k * LANES
        d, e = load(f32x16, scales, place), load(f32x16, scales, place + LANES)
        if not has_m:
            return add_unit(a, totals, d, scale, where), add_unit(b, others_totals, e, scale, where)
        m, n = load(f32x16, offsets, place), load(f32x16, offsets, place + LANES)
        met, others_met = zeros(i32x16, SIZE), zeros(i32x16, SIZE)
        for pair in range(pairs):
            place, at = 4 * (k * pairs + pair) * LANES, where * pairs + pair * SIZE
            met = dot_totals(met, load(i16x32, mins, place), extra, at)
            others_met = dot_totals(others_met, load(i16x32, mins, place + 2 * LANES), extra, at)
        a = add_unit_with_offset(a, totals, d, met, m, scale, where)
        return a, add_unit_with_offset(b, others_totals, e, others_met, n, scale, where)

    return add


def tile_of(layout: Layout, dots_of_two: Any) -> Any:
    """(sums, at, outputs, (begins, ends), token, (panel, lowered, fits, deep, first, depth)): adds
    units `first` to first + depth of a panel `deep` units deep, lowered, to the sums of SIZE tokens
    and 32 rows.

    These lie at sums[at:], but where a panel begins they are zero, or in `outputs` (array, token,
    row, whether it has any), and where it ends they go there. dots_of_two(a, b, v, w, array, at)
    adds to two tiles the dots of two vectors with each token's word."""
    add = add_superblocks(layout, dots_of_two)

    @njit(inline="always")  # or each tile would be a call with a hundred words of arguments
    def tile(sums, at, outputs, begins_ends, token, arguments):
        panel, lowered, fits, deep, first, depth = arguments
        out, out_token, row, begun = outputs
        begins, ends = begins_ends
        a, b = zeros(f32x16, SIZE), zeros(f32x16, SIZE)
        if not begins:
            a = load_rows(a, sums, at, LANES)
            b = load_rows(b, sums, at + TALL // 2, LANES)
        elif begun:
            a = load_tile(a, out, out_token, row, LANES)
            b = load_tile(b, out, out_token, row + LANES, out.shape[1] - row - LANES)
        for k in range(depth):
            where = token * deep + (first + k) * SIZE
            a, b = add(a, b, panel, lowered, k, where, fits[where // SIZE])
        if ends:
            store_tile(a, out, out_token, row, LANES)
            store_tile(b, out, out_token, row + LANES, out.shape[1] - row - LANES)
        else:
            store_rows(sums, at, LANES, a)
            store_rows(sums, at + TALL // 2, LANES, b)

    return tile


def in_pairs(
    layout: Layout, factor: float, pair: tuple[Any, Any], fill: Any, multiply: Callable[[int], Any]
) -> Any:
    """The loops of linear.product for pairs of groups; a thread's last group may be alone. A
    panel's last tokens, too few for a tile, share one with preceding tokens, which are computed
    twice; it is stored apart, since the layout of a lone group lies between."""
    codes_of, dots_of_two = pair
    blocks, step = layout.blocks, layout.step
    lower, tile = lowering(layout, factor, codes_of), tile_of(layout, dots_of_two)
    fill_all, multiply_all = filling(fill, TILES), in_tiles(multiply, TILES)
    units_at_once, units_of_slice = DEEPEST // blocks, SLICE // blocks
    judge = judging(layout, SIZE, WORDS, HALVES_AT) if halves_fit(layout) else never(layout)
    all_fits = (TOKENS // SIZE + 1) * DEEPEST // blocks
    all_codes, all_scales = 2 * SLICE * CODES, 2 * units_of_slice * LANES
    all_pairs = 4 * units_of_slice * pairs_of(layout) * LANES
    all_mins = all_pairs if layout.mins else 1

    @inner
    def multiply_pair(
        panel, weight, at, group_bytes, own, sums, out, first, row, count, unit, deep
    ):
        """Multiply a pair of groups, whose units are at byte `at`, by a panel of `count` tokens."""
        (lowered, fits), whole, left = own, count // SIZE, count % SIZE
        tiles = whole + (left > 0)
        if unit:
            prefetch_outputs_of_two(out, first, row)
        for begin in range(0, deep, units_of_slice):
            depth = min(units_of_slice, deep - begin)
            now = at + begin * step
            lower(weight, now, depth, 0, lowered)
            lower(weight, now + group_bytes, depth, 1, lowered)
            last = begin + depth == deep
            following = at + 2 * group_bytes if last else now + depth * step
            met = panel, lowered, fits, deep, begin, depth
            for t in range(tiles):
                prefetch_part(weight, following, depth * step, t, tiles)
                prefetch_part(weight, following + group_bytes, depth * step, t, tiles)
                if last or (unit and begin == 0):
                    prefetch_outputs_of_two(out, first + min(t + 1, tiles - 1) * SIZE, row)
                place, token, ends = t, t * SIZE, last
                if t == whole:
                    place, token, ends = t + 1, count - SIZE, False
                outputs = out, first + token, row, unit > 0
                tile(sums, t * TALL, outputs, (begin == 0, ends), place * SIZE, met)
            if last:
                put_last(sums, whole * TALL, out, first + count, row, left)

    @njit(inline="always")
    def run(source, panel, weight, _, units, out, tuning, thread, n_threads):
        own = (
            stack(np.uint8, all_codes),
            stack(np.int16, all_pairs),
            stack(np.int16, all_mins),
            stack(np.float32, all_scales),
            stack(np.float32, all_scales),
        )
        sums, fits = stack(np.float32, ALL_SUMS), stack(np.bool_, all_fits)
        group_bytes, tokens = units * step, out.shape[0]
        begin, end = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        for first in range(0, tokens if begin < end else 0, TOKENS):
            count = min(TOKENS, tokens - first)
            whole, left = count // SIZE, count % SIZE
            apart = (whole + 1) * SIZE
            for unit in range(0, units, units_at_once):
                deep = min(units_at_once, units - unit)
                fill_all(count, (source, panel, first, unit, deep))
                if left:
                    fill(apart, SIZE, (source, panel, first + count - SIZE - apart, unit, deep))
                judge(panel[0], whole + 2 * (left > 0), deep, tuning, fits)
                for group in range(begin, end):
                    at, row = group * group_bytes + unit * step, group * LANES
                    if group == end - 1 and (end - begin) % 2:
                        of_one = panel, weight, at, deep, out, first, row, unit == 0, tuning
                        multiply_all(FIRST, count, of_one)
                    elif (group - begin) % 2 == 0:
                        where = out, first, row, count, unit, deep
                        multiply_pair(panel, weight, at, group_bytes, (own, fits), sums, *where)

    return run


def for_prompts(
    few: Any,
    layout: Layout,
    factor: float,
    pair: tuple[Any, Any],
    fill: Any,
    multiply: Callable[[int], Any],
) -> tuple[Any, int]:
    """Like `few` in steps of few tokens, and by pairs of groups from the number of tokens that its
    knob gives; and how many blocks of tokens its panels hold."""
    many = in_pairs(layout, factor, pair, fill, multiply)

    @njit(inline="always")
    def run(source, panel, weight, step, units, out, tuning, thread, n_threads):
        if from_here(out.shape[0], tuning[PAIRS_FROM_AT]):
            many(source, panel, weight, step, units, out, tuning, thread, n_threads)
        else:
            few(source, panel, weight, step, units, out, tuning, thread, n_threads)

    return run, (TOKENS + SIZE) * DEEPEST
