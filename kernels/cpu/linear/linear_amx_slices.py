"""The loops of linear on AMX tiles for int8 activations, and what its kernels share.

A slice, at most eight blocks of a group of sixteen rows, is lowered for all tokens of a panel to
tiles of bytes, which stay in the first level of cache as the sums of these tokens do. A step
multiplies one or two tiles of tokens by it. Dots leave tiles through memory, so that vectors add
those of the step before meanwhile; besides, they lower a part of the next slice.

Outputs are put when TOGETHER groups of rows have theirs, a token's at a time: every token's are on
a page of their own, and as all pages are as far apart, so many would meet in one set of a cache.
"""

from dataclasses import dataclass
from typing import Any

from numba import njit

from kernels.cpu.formats.layouts import BLOCK, Layout
from kernels.cpu.isa.amx import request
from kernels.cpu.isa.simd import (
    f32x16,
    load,
    load_first,
    prefetch_to_write,
    store,
    store_first,
    zero,
)
from kernels.cpu.isa.simd_shuffle import load_rows, store_rows
from kernels.cpu.isa.tiles import zeros
from kernels.cpu.linear.linear import LANES
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share

ROWS = 16  # of a tile: tokens
ROW = 64  # bytes of a tile's row
C = ROWS * LANES  # elements of a tile of sums
PANEL = 1536  # blocks of sixteen tokens: 768 KiB, in the second level of cache
TILES = 8, 16  # of sixteen tokens: multiplied before the next weights are lowered
SLICE = 8  # blocks
LOWERED = 2 * SLICE * BLOCK * LANES  # bytes of a lowered slice, at most
AHEAD = 4  # slices of weights, and tokens of outputs, that are prefetched
TOGETHER = 4  # groups of rows whose outputs of a token are adjacent
GROUP = TILES[1] * C  # sums of a group of rows


def product(
    size: int, deepest: int, whole: int, fill: Any, multiply: Any, tiles: tuple[int, int] = TILES
) -> Any:
    """The loops, over panels of at most `size` units of sixteen tokens, in multiples of `whole`
    units, around

    - fill(source, panel, first, count, unit, depth), which lays `depth` units from `unit` on, at
      most `deepest`, of `count` tokens from `first` on into the panel, [tiles][depth][16 tokens];
      the last tile is filled up with the last token;
    - multiply(state, panel, weight, out, first, count, rows, (unit, depth, units)), which adds to
      the outputs of these tokens and of the groups of rows from rows[0] to rows[1]; the first
      time, `unit` is 0.

    A panel is as deep as the weight where that leaves it tiles[0] tiles: outputs that have to be
    fetched and put again cost as much as a sixth of a product.
    """

    fewest, most_tiles = tiles

    @njit(inline="always")
    def run(state, source, panel, weight, units, out, rows):
        tokens = out.shape[0]
        whole_units = (units + whole - 1) // whole * whole
        at_once = max(fewest, min(most_tiles, size // whole_units)) * ROWS
        for first in range(0, tokens, at_once):
            count = min(at_once, tokens - first)
            most = min(deepest, size // ((count + ROWS - 1) // ROWS)) // whole * whole
            for unit in range(0, units, most):
                depth = min(most, units - unit)
                fill(source, panel, first, count, unit, depth)
                multiply(state, panel, weight, out, first, count, rows, (unit, depth, units))

    return run


@inner
def begin_sums(sums, at, out, first, count, row, unit):
    """Begin a group's sums of a panel's tokens: zero, or the outputs so far. Those of a last tile's
    lanes without tokens are whatever was there: nobody stores them."""
    width = out.shape[1]
    for t in range(count):
        so_far = zero(f32x16)
        if unit:
            so_far = load_first(f32x16, out, (first + t) * width + row, width - row)
        store(sums, at + t * LANES, so_far)


@inner
def put(sums, at, out, token, first, row, groups):
    """Store a token's sums of so many groups of rows, whose first is `row`, and prefetch the
    outputs of a later token."""
    width = out.shape[1]
    place, at = (first + token) * width + row, at + token * LANES
    for g in range(groups):
        prefetch_to_write(out, place + AHEAD * width + g * LANES)
    if groups == TOGETHER and width - row >= TOGETHER * LANES:
        four = load_rows(zeros(f32x16, TOGETHER), sums, at, GROUP)
        store_rows(out, place, LANES, four)
        return
    for g in range(groups):
        one = load(f32x16, sums, at + g * GROUP)
        store_first(out, place + g * LANES, one, width - row - g * LANES)


@dataclass(frozen=True, slots=True)
class Slices:
    """How the slices of a format are multiplied, `tiles` of sixteen tokens in a step.

    - lower(weight, at, begin, end, weights, half): lower these blocks of the slice at byte `at` to
      half 0 or 1 of `weights`, (bytes, floats, mins).
    - step(state, panel, now, due): compute the dots `now`, and add those that are `due`; each is
      (tiles, where sums are, where the panel has the slice's first block, blocks from one tile to
      the next, the half of the weights, blocks). Nothing may be due: no tiles, no blocks.
    - finish(panel, due): add those alone."""

    tiles: int
    lower: Any
    step: Any
    finish: Any


def multiply(layout: Layout, slices: Slices) -> Any:
    """`product`'s, for a panel ((activations, scales, extras), weights, (dots, sums)).

    Sums have two halves, of TOGETHER groups each. The first step of a batch of groups adds the last
    dots of the batch before, which is then put, some tokens in every step, before its half of the
    sums is needed again. So has the half of the weights that the next slice is lowered to: what was
    due there has just been added."""
    at_once, lower = slices.tiles, slices.lower
    multiply_and_add, finish = slices.step, slices.finish
    bytes_of_unit, blocks_of_unit = layout.step, layout.blocks
    bytes_of_slice = SLICE // blocks_of_unit * bytes_of_unit

    @inner
    def multiply(state, panel, weight, out, first, count, rows, where):
        weights, sums, (unit, depth, units) = panel[1], panel[2][1], where
        tiles, deep = (count + ROWS - 1) // ROWS, (depth + SLICE - 1) // SLICE
        steps, group_bytes = (
            (tiles + at_once - 1) // at_once,
            units // blocks_of_unit * bytes_of_unit,
        )
        begin = unit // SLICE * bytes_of_slice  # of the panel in a group
        at, half, due = rows[0] * group_bytes + begin, 0, (0, 0, 0, 0, 0, 0)
        lower(weight, at, 0, min(SLICE, depth), weights, half)
        for batch in range(rows[0], rows[1], TOGETHER):
            groups = min(TOGETHER, rows[1] - batch)
            own = (batch - rows[0]) // TOGETHER % 2 * TOGETHER * GROUP
            before, before_row = TOGETHER * GROUP - own, (batch - TOGETHER) * LANES
            done, owed = 0 if batch > rows[0] else count, 0
            for group in range(batch, batch + groups):
                of_group = own + (group - batch) * GROUP
                begin_sums(sums, of_group, out, first, count, group * LANES, unit)
                for s in range(deep):
                    last, blocks = s + 1 == deep, min(SLICE, depth - s * SLICE)
                    next_at = (group + 1) * group_bytes + begin if last else at + bytes_of_slice
                    next_blocks = min(SLICE, depth if last else depth - (s + 1) * SLICE)
                    if last and group + 1 == rows[1]:
                        next_blocks = 0
                    for number in range(steps):
                        tile = number * at_once
                        some, place = min(at_once, tiles - tile), tile * depth + s * SLICE
                        now = some, of_group + tile * C, place, depth, half, blocks
                        multiply_and_add(state, panel, now, due)
                        due = now
                        block = number * next_blocks // steps
                        next_block = (number + 1) * next_blocks // steps
                        lower(weight, next_at, block, next_block, weights, 1 - half)
                        owed += at_once * ROWS
                        while done < count and owed >= TOGETHER * deep:
                            put(sums, before, out, done, first, before_row, TOGETHER)
                            done, owed = done + 1, owed - TOGETHER * deep
                    at, half = next_at, 1 - half
            for token in range(done, count):
                put(sums, before, out, token, first, before_row, TOGETHER)
        finish(panel, due)
        for token in range(count):
            put(sums, own, out, token, first, batch * LANES, groups)

    return multiply


class TileShare(Share):
    """A share that uses tiles, for which its process needs permission."""

    @property
    def address(self) -> int:
        request()
        return super().address
