"""Formats of eight blocks with one float scale, in linear's kernels of quantised activations.

A superblock's activations have one scale, too (quantise_activations_256), so that all within it
are integers: each part's dots times the part's own integer, and pairs of its floors times the
activations' totals. Two sums of int32 become floats once for 256 elements. They are exact, in
whatever order: below 2^7 (an integer) * 2^20 (32 codes and activations of a byte) * 8 blocks.
"""

from typing import Any

from numba import njit

from kernels.cpu.formats.block_scales import beginning, integers_of
from kernels.cpu.formats.layouts import Layout
from kernels.cpu.isa.simd import Vector, dot_pairs, in_pairs
from kernels.cpu.isa.tiles import add_tiles, add_times, add_unit, add_unit_with_offset, outer, zeros
from kernels.cpu.linear.linear import LANES

meet_totals = outer(dot_pairs)


def pairs_of(layout: Layout) -> int:
    """Words of a superblock's totals, two parts' in one."""
    return layout.blocks * layout.parts // 2


def times_integers(layout: Layout) -> Any:
    """(totals, dots, integers) -> totals with a part's dots added, as often as its integers say."""

    @njit(inline="always")
    def once(totals, dots, integers):
        return add_tiles(totals, dots)

    @njit(inline="always")
    def times(totals, dots, integers):
        return add_times(totals, dots, integers)

    return times if layout.integers else once


def floor_pairs(layout: Layout, lanes: int) -> Any:
    """(weight, at, pair) -> two parts' floors as pairs of i16, of the superblock at byte `at`."""
    _, floor_of = integers_of(layout, lanes)
    block, payload, one_part = layout.block, layout.payload, layout.parts == 1

    @njit(inline="always")
    def floors(weight, at, pair):
        if one_part:
            own = at + 2 * pair * block + payload
            return in_pairs(floor_of(weight, own), floor_of(weight, own + block))
        own = at + pair * block + payload
        return in_pairs(floor_of(weight, own), floor_of(weight, own + LANES))

    return floors


def add_superblock(meeting: Any, layout: Layout, ask: Any) -> Any:
    """(sums, d, m, weight, at, lane, (q, scale, extra), where, size, tuning) -> sums with the
    superblock at byte `at` added; in the panel it is the one at place `where`."""
    lanes, words, parts, blocks = meeting.lanes, 8 * meeting.words, layout.parts, layout.blocks
    integers, pairs = Vector("i32", lanes), pairs_of(layout)
    block_step, payload = layout.block, layout.payload
    two_parts, has_m = parts == 2, layout.m
    begin = beginning(layout, lanes, meeting.taken_off(layout) != 0)
    integer_of, _ = integers_of(layout, lanes)
    floors, times = floor_pairs(layout, lanes), times_integers(layout)
    dots_of = meeting.dots(layout)
    first, last = dots_of[0], dots_of[-1]

    @njit(inline="always")
    def add(sums, d, m, weight, at, lane, panel, where, size, tuning):
        q, scale, extra = panel
        totals = zeros(integers, size)
        for b in range(blocks):
            block, place = at + b * block_step, where * blocks + b * size
            ask(weight, block, tuning)
            own, codes, total = block + payload + lane, block + 4 * lane, place * parts
            if two_parts:
                dots = begin(extra, total, size)
                dots = first(dots, weight, codes, q, place * words, size)
                totals = times(totals, dots, integer_of(weight, own))
                own, total = own + LANES, total + size
            dots = last(begin(extra, total, size), weight, codes, q, place * words, size)
            totals = times(totals, dots, integer_of(weight, own))
        if not has_m:
            return add_unit(sums, totals, d, scale, where)
        met = zeros(integers, size)
        for pair in range(pairs):
            of_rows = floors(weight, at + lane, pair)
            met = meet_totals(met, of_rows, extra, where * pairs + pair * size)
        return add_unit_with_offset(sums, totals, d, met, m, scale, where)

    return add
