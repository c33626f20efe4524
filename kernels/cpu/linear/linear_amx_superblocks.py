"""linear for superblocks on AMX tiles: what linear_amx.py's kernel does with a slice.

Within a superblock all is integer. So what a tile multiplies is not a code but the code times its
part's integer, and sums of 256 elements stay in tiles: they leave through memory, and meet scales,
once. Products of more than a byte are lowered to two tiles, product = 128 high + low. Integer sums
have no order, so the bits are those of linear_superblocks.py.

For 32 tokens and 16 rows tiles take 16 products of 16 cycles. Meanwhile vectors add the dots of the
tokens before, some 12 instructions a token, of which 4 are pairs of mins times pairs of totals.
"""

from typing import Any

from numba import njit

from kernels.cpu.formats.block_scales import integers_of, unit_offset, unit_scale
from kernels.cpu.formats.layouts import BLOCK, Layout
from kernels.cpu.isa.amx import (
    tile_dot_i8,
    tile_load,
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
    prefetch,
    splat,
    store,
)
from kernels.cpu.isa.simd_shuffle import load_rows, store_rows
from kernels.cpu.isa.tiles import add_times, add_unit, add_unit_with_offset, zeros
from kernels.cpu.linear.linear import LANES
from kernels.cpu.linear.linear_amx_slices import AHEAD, LOWERED, ROW, ROWS, SLICE, C, Slices
from kernels.cpu.linear.linear_blocks import total_of
from kernels.cpu.linear.linear_int8 import four_codes
from kernels.cpu.linear.linear_superblocks import dot_totals, pairs_at, pairs_of
from kernels.cpu.runtime.closures import inlined, inner

AT_ONCE = 8  # tokens whose sums are in registers
STEPS = SLICE * BLOCK // ROW  # products of a tile that make a superblock's
TILE = ROWS * ROW  # bytes
MOST_PAIRS = 8  # of mins
FLOATS, MINS = 2 * LANES, 2 * MOST_PAIRS * LANES  # d and m, and pairs of mins, of a superblock
# What multiplies the dots of the first of two tiles, and of the second: products that fit a byte
# go to both by turns. Q3_K's reach from -124 to 128, so they are lowered with the other sign.
# Of IQ1 only nine times fifteen does not fit.
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
            place = token // ROWS * depth // SLICE
            for b in range(depth):
                at = (place * STEPS + b // 2) * TILE + lane * ROW + b % 2 * BLOCK
                store(bytes_, at, load(i8x32, q, row * hidden + (unit + b) * BLOCK))
            for u in range(depth // SLICE):
                b = unit + u * SLICE
                scales[(place + u) * ROWS + lane] = scale[row, b]
                for p in range(pairs):
                    low = total(q, totals, row, b + 2 * p // parts, 2 * p % parts)
                    high = total(q, totals, row, b + (2 * p + 1) // parts, (2 * p + 1) % parts)
                    extras[((place + u) * pairs + p) * ROWS + lane] = (low & 0xFFFF) | (high << 16)

    return fill_tiles


def lower(layout: Layout, factor: float, times: tuple[int, int]) -> Any:
    """Slices.lower: lower blocks to tiles of bytes, and with the last one d, m and pairs of
    mins."""
    step, block_step, payload, parts = layout.step, layout.block, layout.payload, layout.parts
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
    def lower_some(weight, at, begin, end, weights, half):
        lowered, floats, mins = weights
        for b in range(begin, end):
            block = at + b * block_step
            to = half * LOWERED + b // 2 * tile + b % 2 * TILE // 2
            for line in range(0, block_step, CACHE_LINE):
                prefetch(weight, block + AHEAD * step + line, 2)
            integers = integers_at(weight, block + payload)
            four(lowered, to, first(weight, block), integers)
            if parts == 2:
                integers = integers_at(weight, block + payload + LANES)
            four(lowered, to + 4 * ROW, second(weight, block), integers)
        if begin < end == SLICE:  # superblocks are whole slices
            ends = at + SLICE * block_step
            store(floats, half * FLOATS, scale(weight, ends))
            store(floats, half * FLOATS + LANES, offset(weight, ends + 2 * LANES))
            for pair in range(pairs):
                store(mins, half * MINS + pair * 2 * LANES, mins_of(weight, at, pair))

    return lower_some


def adding(layout: Layout, times: tuple[int, int]) -> Any:
    """(panel, due, number): add a quarter of the dots that are due, those of AT_ONCE tokens."""
    has_m, pairs = layout.m, pairs_of(layout)
    first, second = times

    @inlined
    def add(panel, due, number):
        (_, scales, extras), (_, floats, mins), (dots, sums) = panel
        _, at, place, further, half, _ = due
        tile, lane, none = number // 2, number % 2 * AT_ONCE, zeros(i32x16, AT_ONCE)
        at, place = at + (tile * ROWS + lane) * LANES, (place + tile * further) // SLICE
        of_dots, where = (2 * tile * ROWS + lane) * LANES, place * ROWS + lane
        totals = times_splat(none, load_rows(none, dots, of_dots, LANES), first)
        totals = times_splat(totals, load_rows(none, dots, of_dots + C, LANES), second)
        so_far = load_rows(zeros(f32x16, AT_ONCE), sums, at, LANES)
        d = load(f32x16, floats, half * FLOATS)
        if has_m:
            found, m = none, load(f32x16, floats, half * FLOATS + LANES)
            for pair in range(pairs):
                of_rows = load(i16x32, mins, half * MINS + pair * 2 * LANES)
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


def slices(tag: Any, layout: Layout, factor: float, format: str) -> Slices:
    times = WHOLE.get(format, HALVES)
    add, multiply = adding(layout, times), products(tag, times == HALVES)

    @njit(inline="always")
    def step(state, panel, now, due):
        ((q, _, _), (lowered, _, _), (dots, _)), (count, _, place, further, half, _) = panel, now
        several, at, of = count > 1, place * ROWS * BLOCK, half * LOWERED
        tokens, before = (q, at, at + further * ROWS * BLOCK), due[0]
        tile_zero(tag, state, 0)
        tile_zero(tag, state, 1)
        tile_zero(tag, state, 2)
        tile_zero(tag, state, 3)
        for k in range(STEPS):
            multiply(state, tokens, lowered, of, k, several)
            if k < 2 * before:
                add(panel, due, k)
        tile_store(tag, state, 0, dots, 0, ROW)
        tile_store(tag, state, 1, dots, C, ROW)
        if several:
            tile_store(tag, state, 2, dots, 2 * C, ROW)
            tile_store(tag, state, 3, dots, 3 * C, ROW)

    @inner
    def finish(panel, due):
        for number in range(2 * due[0]):
            add(panel, due, number)

    return Slices(2, lower(layout, factor, times), step, finish)
