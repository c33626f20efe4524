"""Formats of eight blocks with one float scale, in linear's kernels of quantised activations.

A superblock's activations have one scale, too (quantise_activations_256), so that all within it
are integers: each part's dots times the part's own integer, and pairs of its mins times the
activations' totals. Two sums of int32 become floats once for 256 elements. They are exact, in
whatever order: below 2^7 (an integer) * 2^20 (32 codes and activations of a byte) * 8 blocks.
"""

from functools import cache
from typing import Any

from numba import njit

from kernels.cpu.formats.block_scales import beginning, integers_of
from kernels.cpu.formats.layouts import Layout
from kernels.cpu.isa.simd import Vector, dot_pairs, in_pairs, splat
from kernels.cpu.isa.tiles import add_tiles, add_times, add_unit, add_unit_with_offset, outer, zeros
from kernels.cpu.linear.linear import LANES
from kernels.cpu.runtime.closures import inlined

dot_totals = outer(dot_pairs)


def pairs_of(layout: Layout) -> int:
    """Words of a superblock's totals, two parts in one."""
    return layout.blocks * layout.parts // 2


def times_integers(layout: Layout) -> Any:
    """(totals, dots, integers) -> totals plus a part's dots times its integers."""

    @njit(inline="always")
    def once(totals, dots, integers):
        return add_tiles(totals, dots)

    @njit(inline="always")
    def times(totals, dots, integers):
        return add_times(totals, dots, integers)

    return times if layout.integer_scales else once


@cache
def pairs_at(layout: Layout, integer: Any) -> Any:
    """(weight, at, pair) -> two parts' integers, each read by integer(weight, byte), as pairs of
    i16, of the superblock at byte `at`."""
    block, payload, one_part = layout.block, layout.payload, layout.parts == 1

    @inlined
    def pairs(weight, at, pair):
        if one_part:
            own = at + 2 * pair * block + payload
            return in_pairs(integer(weight, own), integer(weight, own + block))
        own = at + pair * block + payload
        return in_pairs(integer(weight, own), integer(weight, own + LANES))

    return pairs


def add_blocks(microkernel: Any, layout: Layout, prefetch_next: Any) -> Any:
    """(totals, weight, block, lane, (q, extra), place, size, tuning) -> totals plus the block at
    byte `block`, which is at index `place` in the panel."""
    if scaled := microkernel.scaled_dots(layout):
        return add_scaled_blocks(microkernel, layout, scaled, prefetch_next)
    lanes, words, parts = microkernel.lanes, 8 * microkernel.words, layout.parts
    payload, two_parts = layout.payload, layout.parts == 2
    begin = beginning(layout, lanes, microkernel.zero_point_correction(layout) != 0)
    integer_of, _ = integers_of(layout, lanes)
    times, dots_of = times_integers(layout), microkernel.dots(layout)
    first, last = dots_of[0], dots_of[-1]

    @njit(inline="always")
    def add(totals, weight, block, lane, panel, place, size, tuning):
        prefetch_next(weight, block, tuning)
        q, extra = panel
        own, codes, total = block + payload + lane, block + 4 * lane, place * parts
        if two_parts:
            dots = begin(extra, total, size)
            dots = first(dots, weight, codes, q, place * words, size)
            totals = times(totals, dots, integer_of(weight, own))
            own, total = own + LANES, total + size
        dots = last(begin(extra, total, size), weight, codes, q, place * words, size)
        return times(totals, dots, integer_of(weight, own))

    return add


def add_scaled_blocks(
    microkernel: Any, layout: Layout, scaled: tuple[Any, tuple[Any, ...]], prefetch_next: Any
) -> Any:
    """`add_blocks` where integers multiply as dots are summed; the zero point is left to
    `add_floats`."""
    words, payload, two_parts = 8 * microkernel.words, layout.payload, layout.parts == 2
    integers_at, dots_of = scaled
    first, last = dots_of[0], dots_of[-1]

    @njit(inline="always")
    def add(totals, weight, block, lane, panel, place, size, tuning):
        prefetch_next(weight, block, tuning)
        q, own, codes = panel[0], block + payload + lane, block + 4 * lane
        if two_parts:
            integers = integers_at(weight, own)
            totals = first(totals, integers, weight, codes, q, place * words, size)
            own += LANES
        return last(totals, integers_at(weight, own), weight, codes, q, place * words, size)

    return add


def add_floats(microkernel: Any, layout: Layout) -> Any:
    """(sums, totals, d, m, weight, at, (scale, extra), where, size) -> sums plus a superblock's
    totals and its mins, or its scales and the zero point, times the activations' totals; `at` is
    its first byte of these lanes."""
    integers, pairs, has_m = Vector("i32", microkernel.lanes), pairs_of(layout), layout.m
    in_pairs = microkernel.totals_in_pairs(layout)
    factors = pairs_at(layout, integers_of(layout, microkernel.lanes)[has_m])
    correction = microkernel.zero_point_correction(layout)

    @njit(inline="always")
    def add(sums, totals, d, m, weight, at, panel, where, size):
        scale, extra = panel
        if not in_pairs:
            return add_unit(sums, totals, d, scale, where)
        met = zeros(integers, size)
        for pair in range(pairs):
            met = dot_totals(met, factors(weight, at, pair), extra, where * pairs + pair * size)
        if has_m:
            return add_unit_with_offset(sums, totals, d, met, m, scale, where)
        totals = add_times(totals, met, splat(integers, correction))
        return add_unit(sums, totals, d, scale, where)

    return add


def add_superblock(microkernel: Any, layout: Layout, prefetch_next: Any) -> Any:
    """(sums, d, m, weight, at, lane, (q, scale, extra), where, size, tuning) -> sums plus the
    superblock at byte `at`, which is at index `where` in the panel."""
    lanes, blocks, block_step = microkernel.lanes, layout.blocks, layout.block
    integers = Vector("i32", lanes)
    add_block, end = add_blocks(microkernel, layout, prefetch_next), add_floats(microkernel, layout)

    @njit(inline="always")
    def add(sums, d, m, weight, at, lane, panel, where, size, tuning):
        q, scale, extra = panel
        totals = zeros(integers, size)
        for b in range(blocks):
            block, place = at + b * block_step, where * blocks + b * size
            totals = add_block(totals, weight, block, lane, (q, extra), place, size, tuning)
        return end(sums, totals, d, m, weight, at + lane, (scale, extra), where, size)

    return add


def add_two_superblocks(microkernel: Any, layout: Layout, prefetch_next: Any) -> Any:
    """The same for one token and two groups of rows, with alternating blocks: (sums, ds, ms,
    weight, ats, lane, panel, where, tuning) -> sums; all but the panel's values are tuples of
    two."""
    lanes, blocks, block_step = microkernel.lanes, layout.blocks, layout.block
    integers = Vector("i32", lanes)
    add_block, end = add_blocks(microkernel, layout, prefetch_next), add_floats(microkernel, layout)

    @njit(inline="always")
    def add(sums, ds, ms, weight, ats, lane, panel, where, tuning):
        q, scale, extra = panel
        a, b = zeros(integers, 1), zeros(integers, 1)
        for k in range(blocks):
            step, place = k * block_step, where * blocks + k
            a = add_block(a, weight, ats[0] + step, lane, (q, extra), place, 1, tuning)
            b = add_block(b, weight, ats[1] + step, lane, (q, extra), place, 1, tuning)
        floats = scale, extra
        return (
            end(sums[0], a, ds[0], ms[0], weight, ats[0] + lane, floats, where, 1),
            end(sums[1], b, ds[1], ms[1], weight, ats[1] + lane, floats, where, 1),
        )

    return add
