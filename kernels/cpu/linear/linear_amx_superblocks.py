"""linear for formats of superblocks and int8 activations on AMX tiles: variant `amx`.

Within a superblock all is integer. So what a tile multiplies is not a code but the code times its
part's integer, and sums of 256 elements stay in tiles: they leave through memory, and meet scales,
once a superblock. Products of more than a byte are lowered to two tiles, product = 128 high + low.
Integer sums have no order, so the bits are those of linear_superblocks.py.

A group's superblock is lowered for all tokens of a panel, into 8 KiB that stay in the first level
of cache, and so do the sums of these tokens. For 32 tokens and 16 rows tiles take 16 products of
16 cycles. Meanwhile vectors add the dots of the tokens before (some 12 instructions for each, of
which 4 are pairs of mins times pairs of totals), and lower a part of the next superblock.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.block_scales import integers_of, unit_offset, unit_scale
from kernels.cpu.formats.decoding import CODINGS
from kernels.cpu.formats.layouts import BLOCK, LAYOUTS, Layout
from kernels.cpu.isa.amx import (
    AMX,
    EMULATED,
    FULL,
    configure,
    release,
    tile_dot_i8,
    tile_load,
    tile_state,
    tile_store,
    tile_zero,
)
from kernels.cpu.isa.simd import (
    CACHE_LINE,
    byte_products,
    f32x16,
    i8x32,
    i16x32,
    i32x16,
    in_pairs,
    load,
    load_first,
    prefetch,
    prefetch_to_write,
    splat,
    store,
    store_first,
    zero,
)
from kernels.cpu.isa.simd_shuffle import load_rows, stack, store_rows
from kernels.cpu.isa.tiles import add_times, add_unit, add_unit_with_offset, zeros
from kernels.cpu.linear.linear import LANES, from_here, named
from kernels.cpu.linear.linear_amx import (
    PANEL,
    ROW,
    ROWS,
    TILES,
    TILES_FROM_AT,
    TOGETHER,
    C,
    TileShare,
    few_tokens,
    product,
)
from kernels.cpu.linear.linear_blocks import SIGNATURE, total_of
from kernels.cpu.linear.linear_int8 import four_codes
from kernels.cpu.linear.linear_superblocks import dot_totals, pairs_at, pairs_of
from kernels.cpu.runtime.closures import inlined, inner
from kernels.cpu.runtime.share import Share, arguments, part

BLOCKS = 8  # of a superblock
STEPS = BLOCKS * BLOCK // ROW  # products of a tile that make a superblock's
TILE = ROWS * ROW  # bytes
LOWERED = 2 * STEPS * TILE  # bytes of a superblock's lowered weights
AT_ONCE = 8  # tokens whose sums are in registers
MOST_PAIRS = 8  # of mins
FLOATS, MINS = 2 * LANES, 2 * MOST_PAIRS * LANES  # d and m, and pairs of mins, of a superblock
GROUP = TILES[1] * C  # sums of a group of rows
TOKENS_AHEAD = 4  # whose outputs are prefetched
SUPERBLOCKS_AHEAD = 4  # of the weights that are
# What multiplies the dots of the first of two tiles, and of the second: products that fit a byte
# go to both by turns. Q3_K's reach from -124 to 128, so they are lowered with the other sign.
HALVES = 128, 1
WHOLE = {"Q2_K": (1, 1), "Q3_K": (-1, -1), "TQ1_0": (1, 1), "TQ2_0": (1, 1)}


def fill(layout: Layout) -> Any:
    """Lay out activations, two blocks in a tile's row, a superblock's scales and, where there are
    mins, pairs of totals."""
    total, parts = total_of(layout), layout.parts
    pairs = pairs_of(layout) if layout.mins else 0

    @inner
    def fill_tiles(source, panel, first, count, unit, depth):
        (q, scale, totals), (bytes_, scales, extras) = source, panel[0]
        hidden = q.shape[1]
        for token in range((count + ROWS - 1) // ROWS * ROWS):
            row, lane = first + min(token, count - 1), token % ROWS
            place = token // ROWS * depth // BLOCKS
            for b in range(depth):
                at = (place * STEPS + b // 2) * TILE + lane * ROW + b % 2 * BLOCK
                store(bytes_, at, load(i8x32, q, row * hidden + (unit + b) * BLOCK))
            for u in range(depth // BLOCKS):
                b = unit + u * BLOCKS
                scales[(place + u) * ROWS + lane] = scale[row, b]
                for p in range(pairs):
                    low = total(q, totals, row, b + 2 * p // parts, 2 * p % parts)
                    high = total(q, totals, row, b + (2 * p + 1) // parts, (2 * p + 1) % parts)
                    extras[((place + u) * pairs + p) * ROWS + lane] = (low & 0xFFFF) | (high << 16)

    return fill_tiles


def lower(layout: Layout, factor: float, times: tuple[int, int]) -> Any:
    """(weight, at, begin, end, memory, which): lower blocks begin to end of the superblock at byte
    `at` to tiles of bytes, in the first or second half of the memory; with the last one d, m and
    pairs of mins."""
    block_step, payload, parts = layout.block, layout.payload, layout.parts
    step = layout.step
    split, sign = times == HALVES, min(times)
    has_integers, pairs = layout.integer_scales, pairs_of(layout) if layout.mins else 0
    first, second = (four_codes(layout, LANES, half) for half in (0, 1))
    scale, offset = unit_scale(layout, LANES, factor), unit_offset(layout, LANES)
    integer_of, min_of = integers_of(layout, LANES)
    mins_of = pairs_at(layout, min_of)
    products = byte_products(layout.zero_point, sign, split)
    tile = (1 + split) * TILE

    @njit(inline="always")
    def four(lowered, at, codes, integers):
        for i in range(4):
            of_codes = products(codes[i], integers)
            store(lowered, at + i * ROW, of_codes[0])
            if split:
                store(lowered, at + TILE + i * ROW, of_codes[1])

    @njit(inline="always")
    def integers_at(weight, own):
        one = integer_of(weight, own) if has_integers else splat(i32x16, 1)
        return in_pairs(one, one)

    @inner
    def lower_some(weight, at, begin, end, memory, which):
        lowered, floats, mins = memory
        for b in range(begin, end):
            block = at + b * block_step
            to = which * LOWERED + b // 2 * tile + b % 2 * TILE // 2
            for line in range(0, block_step, CACHE_LINE):
                prefetch(weight, block + SUPERBLOCKS_AHEAD * step + line, 2)
            integers = integers_at(weight, block + payload)
            four(lowered, to, first(weight, block), integers)
            if parts == 2:
                integers = integers_at(weight, block + payload + LANES)
            four(lowered, to + 4 * ROW, second(weight, block), integers)
        if end == BLOCKS:
            ends = at + BLOCKS * block_step
            store(floats, which * FLOATS, scale(weight, ends))
            store(floats, which * FLOATS + LANES, offset(weight, ends + 2 * LANES))
            for pair in range(pairs):
                store(mins, which * MINS + pair * 2 * LANES, mins_of(weight, at, pair))

    return lower_some


def adding(layout: Layout, times: tuple[int, int]) -> Any:
    """(memory, met, due, number): add a quarter of the dots that are `due`, those of AT_ONCE
    tokens, to their sums. `due` is how many tiles are (0 to 2), where their sums are, where their
    superblock is in the panel and, further on, that of the second tile, and which half of the
    lowered weights they met."""
    has_m, pairs = layout.m, pairs_of(layout)
    first, second = times

    @inlined
    def add(memory, met, due, number):
        (sums, dots, floats, mins), (scales, extras), which = memory, met, due[4]
        tile, lane, none = number // 2, number % 2 * AT_ONCE, zeros(i32x16, AT_ONCE)
        at, place = due[1] + (tile * ROWS + lane) * LANES, due[2] + tile * due[3]
        of_dots, where = (2 * tile * ROWS + lane) * LANES, place * ROWS + lane
        totals = times_splat(none, load_rows(none, dots, of_dots, LANES), first)
        totals = times_splat(totals, load_rows(none, dots, of_dots + C, LANES), second)
        so_far = load_rows(zeros(f32x16, AT_ONCE), sums, at, LANES)
        d = load(f32x16, floats, which * FLOATS)
        if has_m:
            found, m = none, load(f32x16, floats, which * FLOATS + LANES)
            for pair in range(pairs):
                of_rows = load(i16x32, mins, which * MINS + pair * 2 * LANES)
                of_tokens = (place * pairs + pair) * ROWS + lane
                found = dot_totals(found, of_rows, extras, of_tokens)
            so_far = add_unit_with_offset(so_far, totals, d, found, m, scales, where)
        else:
            so_far = add_unit(so_far, totals, d, scales, where)
        store_rows(sums, at, LANES, so_far)

    return add


@njit(inline="always")
def times_splat(totals, dots, factor):
    return add_times(totals, dots, splat(i32x16, factor))


def products(tag: Any, split: bool) -> Any:
    """(state, (q, at, below), lowered, of, k, several): multiply one or two tiles of tokens, at
    bytes `at` and `below`, by step k of the superblock lowered from byte `of` on, into tiles 0 and
    1, and 2 and 3."""
    tile = (1 + split) * TILE

    @njit(inline="always")
    def two(state, tokens, lowered, of, k, several):
        q, at, below = tokens
        tile_load(tag, state, 4, q, at + k * TILE, ROW)
        tile_load(tag, state, 6, lowered, of + k * tile, ROW)
        tile_load(tag, state, 7, lowered, of + k * tile + TILE, ROW)
        tile_dot_i8(tag, state, 0, 4, 6)
        tile_dot_i8(tag, state, 1, 4, 7)
        if several:
            tile_load(tag, state, 5, q, below + k * TILE, ROW)
            tile_dot_i8(tag, state, 2, 5, 6)
            tile_dot_i8(tag, state, 3, 5, 7)

    @njit(inline="always")
    def one(state, tokens, lowered, of, k, several):
        q, at, below = tokens
        tile_load(tag, state, 4, q, at + k * TILE, ROW)
        tile_load(tag, state, 6, lowered, of + k * tile, ROW)
        if k % 2:
            tile_dot_i8(tag, state, 1, 4, 6)
        else:
            tile_dot_i8(tag, state, 0, 4, 6)
        if several:
            tile_load(tag, state, 5, q, below + k * TILE, ROW)
            if k % 2:
                tile_dot_i8(tag, state, 3, 5, 6)
            else:
                tile_dot_i8(tag, state, 2, 5, 6)

    return two if split else one


@inner
def begin_sums(sums, at, out, first, count, row, unit):
    """Begin a group's sums of a panel's tokens: zero, or the outputs so far."""
    width = out.shape[1]
    for t in range(count):
        so_far = zero(f32x16)
        if unit:
            so_far = load_first(f32x16, out, (first + t) * width + row, width - row)
        store(sums, at + t * LANES, so_far)


@inner
def put(sums, at, out, token, first, row, groups):
    """Store a token's sums of so many groups of rows, whose first is `row`: outputs that are
    adjacent, since every token's are on a page of their own. Prefetch those of a later token."""
    width = out.shape[1]
    place, at = (first + token) * width + row, at + token * LANES
    for g in range(groups):
        prefetch_to_write(out, place + TOKENS_AHEAD * width + g * LANES)
    if groups == TOGETHER and width - row >= TOGETHER * LANES:
        four = load_rows(zeros(f32x16, TOGETHER), sums, at, GROUP)
        store_rows(out, place, LANES, four)
        return
    for g in range(groups):
        one = load(f32x16, sums, at + g * GROUP)
        store_first(out, place + g * LANES, one, width - row - g * LANES)


def multiply(tag: Any, layout: Layout, factor: float, times: tuple[int, int]) -> Any:
    lower_some, add = lower(layout, factor, times), adding(layout, times)
    step, multiply_tiles = layout.step, products(tag, times == HALVES)

    @njit(inline="always")
    def begin_dots(state):
        tile_zero(tag, state, 0)
        tile_zero(tag, state, 1)
        tile_zero(tag, state, 2)
        tile_zero(tag, state, 3)

    @njit(inline="always")
    def end_dots(state, dots, several):
        tile_store(tag, state, 0, dots, 0, ROW)
        tile_store(tag, state, 1, dots, C, ROW)
        if several:
            tile_store(tag, state, 2, dots, 2 * C, ROW)
            tile_store(tag, state, 3, dots, 3 * C, ROW)

    @inner
    def multiply(state, panel, weight, out, first, count, rows, where):
        (q, scales, extras), (lowered, floats, mins), (dots, sums) = panel
        memory, met, (unit, depth, units) = (sums, dots, floats, mins), (scales, extras), where
        superblocks, tiles = depth // BLOCKS, (count + ROWS - 1) // ROWS
        group_bytes, begin = units // BLOCKS * step, unit // BLOCKS * step
        steps, next_tile, weights = (tiles + 1) // 2, superblocks * STEPS * TILE, panel[1]
        at, which, due = rows[0] * group_bytes + begin, 0, (0, 0, 0, 0, 0)
        lower_some(weight, at, 0, BLOCKS, weights, which)
        for batch in range(rows[0], rows[1], TOGETHER):
            groups = min(TOGETHER, rows[1] - batch)
            own = (batch - rows[0]) // TOGETHER % 2 * TOGETHER * GROUP
            before, before_row = TOGETHER * GROUP - own, (batch - TOGETHER) * LANES
            done, owed = 0 if batch > rows[0] else count, 0
            for group in range(batch, batch + groups):
                of_group = own + (group - batch) * GROUP
                begin_sums(sums, of_group, out, first, count, group * LANES, unit)
                for u in range(superblocks):
                    last = u + 1 == superblocks
                    following = (group + 1) * group_bytes + begin if last else at + step
                    more = not (last and group + 1 == rows[1])
                    for number in range(steps):
                        several, place = 2 * number + 1 < tiles, 2 * number * superblocks + u
                        of, own_weights = place * STEPS * TILE, which * LOWERED
                        tokens = q, of, of + next_tile
                        begin_dots(state)
                        for k in range(STEPS):
                            multiply_tiles(state, tokens, lowered, own_weights, k, several)
                            if k < 2 * due[0]:
                                add(memory, met, due, k)
                        end_dots(state, dots, several)
                        due = 1 + several, of_group + 2 * number * C, place, superblocks, which
                        if more:
                            some = number * BLOCKS // steps, (number + 1) * BLOCKS // steps
                            lower_some(weight, following, some[0], some[1], weights, 1 - which)
                        owed += AT_ONCE
                        while done < count and owed >= superblocks:
                            put(sums, before, out, done, first, before_row, TOGETHER)
                            done, owed = done + 1, owed - superblocks
                    at, which = following, 1 - which
            for token in range(done, count):
                put(sums, before, out, token, first, before_row, TOGETHER)
        for number in range(2 * due[0]):
            add(memory, met, due, number)
        for token in range(count):
            put(sums, own, out, token, first, batch * LANES, groups)

    return multiply


def int8_kernel(tag: Any, format: str) -> Callable[..., None]:
    layout, times = LAYOUTS[format], WHOLE.get(format, HALVES)
    few = few_tokens(tag, format)
    tiles = multiply(tag, layout, CODINGS[format].factor, times)
    many = product(PANEL, PANEL, BLOCKS, fill(layout), tiles)
    activations, met = PANEL * ROWS * BLOCK, PANEL // BLOCKS * ROWS
    extras = met * pairs_of(layout) if layout.mins else 1
    lowered, floats, mins = 2 * LOWERED, 2 * FLOATS, 2 * MINS
    dots, sums = 4 * C, 2 * TOGETHER * GROUP

    def kernel(args, thread, n_threads):
        q, scale, total, weight, tuning, out = arguments(args, SIGNATURE)
        if not from_here(out.shape[0], tuning[TILES_FROM_AT]):
            few(args, thread, n_threads)
            return
        rows = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        if rows[0] == rows[1]:
            return
        panel = (
            (stack(np.int8, activations), stack(np.float32, met), stack(np.int32, extras)),
            (stack(np.int8, lowered), stack(np.float32, floats), stack(np.int16, mins)),
            (stack(np.int32, dots), stack(np.float32, sums)),
        )
        state = tile_state(tag)
        configure(tag, state, FULL)
        many(state, (q, scale, total), panel, weight, scale.shape[1], out, rows)
        release(tag, state)

    return named(kernel, tag.form)


def shares(tag: Any) -> dict[str, Share]:
    superblocks = [f for f, layout in LAYOUTS.items() if layout.blocks == BLOCKS]
    return {f: TileShare(partial(int8_kernel, tag, f), SIGNATURE, f) for f in superblocks}


SHARES, EMULATED_SHARES = shares(AMX), shares(EMULATED)
