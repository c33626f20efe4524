"""linear for blocks of 32 and int8 activations on AMX tiles: variant `amx`. Superblocks are in
linear_amx_superblocks.py.

One instruction multiplies a block of sixteen tokens by that of sixteen rows of the weight, which is
packed (layouts.py) almost as the tile, 8 by 64 bytes. Its codes are unpacked and lowered to signed
bytes once for all tokens of a panel. Every output is the same chain over blocks as in
linear_blocks.py, so the bits are too.

By Intel's figures the product takes 16 cycles. Then its dots leave the tiles through memory, and
vectors scale them, 2 instructions a cycle: 3 for each token of a block, so 24 cycles are the
bottleneck. Two blocks are in flight, so that one is scaled while the other waits for its dots. For
few tokens, vectors alone are faster.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.block_scales import unit_offset, unit_scale
from kernels.cpu.formats.layouts import BLOCK, LAYOUTS, Layout
from kernels.cpu.isa.amx import (
    AMX,
    EMULATED,
    configure,
    release,
    request,
    tile_config,
    tile_dot_i8,
    tile_load,
    tile_state,
    tile_store,
    tile_zero,
)
from kernels.cpu.isa.simd import (
    f32x16,
    i8x32,
    i8x64,
    i32x16,
    less,
    load,
    load_first,
    prefetch_to_write,
    store,
    store_first,
)
from kernels.cpu.isa.simd_shuffle import load_rows, stack, store_rows
from kernels.cpu.isa.tiles import (
    add_scaled,
    fma_outer,
    zeros,
)
from kernels.cpu.linear import linear, linear_blocks
from kernels.cpu.linear.linear import LANES, Blocking, from_here, named, prefetch_part
from kernels.cpu.linear.linear_blocks import SIGNATURE
from kernels.cpu.linear.linear_int8 import AVX512_VNNI, GENERIC, four_codes
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, part
from kernels.knob import Knob

ROWS = 16  # of a tile: tokens
ROW = 64  # bytes of a tile's row
C = ROWS * LANES  # elements of a tile of sums
PANEL = 1536  # blocks of sixteen tokens: 768 KiB, in the second level of cache
DEEPEST = 192  # blocks of lowered weights: 96 KiB
TILES = 8, 16  # of sixteen tokens: multiplied before the next weights are lowered
UNDER_WAY = 4  # tiles of dots
TOGETHER = 4  # groups of rows whose outputs of a token are adjacent
WEIGHTS = DEEPEST * LANES * BLOCK  # bytes of a group's lowered weights
SCALES = DEEPEST * LANES
TILES_FROM = Knob(
    "tiles_from",
    (2, 3, 5, 9, 13),
    5,
    "from how many tokens on tiles meet them, and not vectors alone",
    (2, 4, 8, 12),
    crossover=True,
)
KNOBS = (*linear.KNOBS, TILES_FROM)
TILES_FROM_AT = len(linear.KNOBS)
FORMATS = tuple(f for f, layout in LAYOUTS.items() if layout.blocks == 1 and not layout.table)
FEW = Blocking((4, 2, 1), tokens=4, units=768)


@inner
def fetch(kept, at, out, token, row):
    """Load the outputs so far of sixteen tokens and rows, where they exist, to kept[at:]."""
    tokens, width = out.shape
    for t in range(min(ROWS, tokens - token)):
        sums = load_first(f32x16, out, (token + t) * width + row, width - row)
        store(kept, at + t * LANES, sums)


@njit(inline="always")
def prefetch_outputs(out, token, row):
    """Prefetch the lines of sixteen tokens' outputs: a store to a missing line waits for all of
    it."""
    tokens, width = out.shape
    for t in range(min(ROWS, tokens - token)):
        prefetch_to_write(out, (token + t) * width + row)


@inner
def put(out, token, row, kept, at):
    """Store sixteen tokens' outputs from kept[at:], where they exist."""
    tokens, width = out.shape
    for t in range(min(ROWS, tokens - token)):
        sums = load(f32x16, kept, at + t * LANES)
        store_first(out, (token + t) * width + row, sums, width - row)


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
        at_once = max(fewest, min(most_tiles, size // units)) * ROWS
        for first in range(0, tokens, at_once):
            count = min(at_once, tokens - first)
            most = min(deepest, size // ((count + ROWS - 1) // ROWS)) // whole * whole
            for unit in range(0, units, most):
                depth = min(most, units - unit)
                fill(source, panel, first, count, unit, depth)
                multiply(state, panel, weight, out, first, count, rows, (unit, depth, units))

    return run


def fill(layout: Layout) -> Any:
    """Lay out activations, a block's scale and, where weights have an offset, its factor: the
    block's total times the scale."""
    has_m = layout.m

    @inner
    def fill_tiles(source, panel, first, count, unit, depth):
        (q, scale, totals), (bytes_, scales, extras) = source, panel[0]
        hidden = q.shape[1]
        for token in range((count + ROWS - 1) // ROWS * ROWS):
            row, lane = first + min(token, count - 1), token % ROWS
            tile = token // ROWS * depth
            for b in range(depth):
                at = (tile + b) * ROWS + lane
                store(bytes_, at * BLOCK, load(i8x32, q, row * hidden + (unit + b) * BLOCK))
                scales[at] = scale[row, unit + b]
                if has_m:
                    extras[at] = scale[row, unit + b] * np.float32(totals[row, unit + b])

    return fill_tiles


def lower(layout: Layout) -> Any:
    """(weight, at, depth, lowered, scales, offsets): lower a group's blocks to tiles of signed
    bytes, and each block's d and m."""
    step, has_m, payload = layout.step, layout.m, layout.block
    first, second = (four_codes(layout, LANES, half) for half in (0, 1))
    scale, offset = unit_scale(layout, LANES), unit_offset(layout, LANES)
    zero_point = np.full(ROW, layout.zero_point, np.uint8)

    @njit(inline="always")
    def four(lowered, at, codes):
        for i in range(4):
            store(lowered, at + i * ROW, less(codes[i], load(i8x64, zero_point, 0)))

    @inner
    def lower_all(weight, at, depth, lowered, scales, offsets):
        for b in range(depth):
            block = at + b * step
            store(scales, b * LANES, scale(weight, block + payload))
            if has_m:
                store(offsets, b * LANES, offset(weight, block + payload + 2 * LANES))
            four(lowered, 8 * b * ROW, first(weight, block))
            four(lowered, (8 * b + 4) * ROW, second(weight, block))

    return lower_all


def multiply(tag: Any, layout: Layout) -> Any:
    step, has_m, lower_all = layout.step, layout.m, lower(layout)

    @njit(inline="always")
    def issue(state, c, a, w, where, block, dots):
        """Compute a block's dots and store them to the slot block % UNDER_WAY of `dots`."""
        q, first, lowered = where
        tile_zero(tag, state, c)
        tile_load(tag, state, a, q, (first + block) * ROWS * BLOCK, BLOCK)
        tile_load(tag, state, w, lowered, block * LANES * BLOCK, ROW)
        tile_dot_i8(tag, state, c, a, w)
        tile_store(tag, state, c, dots, block % UNDER_WAY * C, ROW)

    @njit(inline="always")
    def add(sums, dots, weights, met, first, block):
        (scales, offsets), (token_scales, extras) = weights, met
        exact = load_rows(zeros(i32x16, ROWS), dots, block % UNDER_WAY * C, LANES)
        place, d = (first + block) * ROWS, load(f32x16, scales, block * LANES)
        sums = add_scaled(sums, exact, d, token_scales, place)
        if has_m:
            sums = fma_outer(sums, load(f32x16, offsets, block * LANES), extras, place)
        return sums

    @njit(inline="always")
    def own_of(lowered_weights, which):
        """The lowered weights, and their scales and offsets, of one of the joint groups."""
        lowered, scales, offsets = lowered_weights
        return lowered[which * WEIGHTS :], (scales[which * SCALES :], offsets[which * SCALES :])

    @inner
    def tile(state, q, met, first, lowered, weights, depth, dots, sums):
        """Sixteen tokens of the panel from its block `first`, a group of rows, `depth` blocks. A
        block's dots are computed two blocks before they are added, since they leave tiles through
        memory."""
        where = q, first, lowered
        issue(state, 0, 4, 5, where, 0, dots)
        if depth > 1:
            issue(state, 1, 6, 7, where, 1, dots)
        block = 0
        while block + UNDER_WAY + 2 <= depth:
            issue(state, 2, 4, 5, where, block + 2, dots)
            sums = add(sums, dots, weights, met, first, block)
            issue(state, 3, 6, 7, where, block + 3, dots)
            sums = add(sums, dots, weights, met, first, block + 1)
            issue(state, 0, 4, 5, where, block + 4, dots)
            sums = add(sums, dots, weights, met, first, block + 2)
            issue(state, 1, 6, 7, where, block + 5, dots)
            sums = add(sums, dots, weights, met, first, block + 3)
            block += UNDER_WAY
        for last in range(block, depth):
            if last + 2 < depth:
                issue(state, 0, 4, 5, where, last + 2, dots)
            sums = add(sums, dots, weights, met, first, last)
        return sums

    @inner
    def multiply(state, panel, weight, out, first, count, rows, where):
        (q, token_scales, extras), lowered_weights, (dots, kept) = panel
        met, (unit, depth, units) = (token_scales, extras), where
        group_bytes, used = units * step, depth * step
        tokens, width = out.shape
        begin, end = rows
        for together in range(begin, end, TOGETHER):
            last = min(together + TOGETHER, end)
            for group in range(together, last):
                lowered, (scales, offsets) = own_of(lowered_weights, group - together)
                at = group * group_bytes + unit * step
                lower_all(weight, at, depth, lowered, scales, offsets)
            for token in range(0, count, ROWS):
                for group in range(together, last):
                    lowered, weights = own_of(lowered_weights, group - together)
                    following = (group + TOGETHER) * group_bytes + unit * step
                    tiles = (count + ROWS - 1) // ROWS
                    prefetch_part(weight, following, used, token // ROWS, tiles)
                    prefetch_outputs(out, first + token, group * LANES)
                    sums = zeros(f32x16, ROWS)
                    if unit:
                        fetch(kept, 0, out, first + token, group * LANES)
                        sums = load_rows(sums, kept, 0, LANES)
                    of = token // ROWS * depth
                    sums = tile(state, q, met, of, lowered, weights, depth, dots, sums)
                    at_row = first + token, group * LANES
                    if tokens - at_row[0] >= ROWS and width - at_row[1] >= LANES:
                        store_rows(out, at_row[0] * width + at_row[1], width, sums)
                    else:
                        store_rows(kept, 0, LANES, sums)
                        put(out, at_row[0], at_row[1], kept, 0)

    return multiply


def few_tokens(tag: Any, format: str) -> Any:
    """The share of vectors alone, compiled for few tokens."""
    vectors = replace(AVX512_VNNI if tag == AMX else GENERIC, blocking=FEW, four_of_two=None)
    return inner(linear_blocks.int8_kernel(vectors, "few", format))


def int8_kernel(tag: Any, format: str) -> Callable[..., None]:
    layout, few = LAYOUTS[format], few_tokens(tag, format)
    many = product(PANEL, DEEPEST, 1, fill(layout), multiply(tag, layout))
    # dots, then activations and weights by turns
    config = tile_config(*[(ROWS, ROW)] * UNDER_WAY, *[(ROWS, BLOCK), (BLOCK // 4, ROW)] * 2)
    activations, met, dots = PANEL * ROWS * BLOCK, PANEL * ROWS, UNDER_WAY * C
    extras, weights, scales = met if layout.m else 1, TOGETHER * WEIGHTS, TOGETHER * SCALES

    def kernel(args, thread, n_threads):
        q, scale, total, weight, tuning, out = arguments(args, SIGNATURE)
        if not from_here(out.shape[0], tuning[TILES_FROM_AT]):
            few(args, thread, n_threads)
            return
        rows = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        if rows[0] == rows[1]:
            return
        panel = (
            (stack(np.int8, activations), stack(np.float32, met), stack(np.float32, extras)),
            (stack(np.int8, weights), stack(np.float32, scales), stack(np.float32, scales)),
            (stack(np.int32, dots), stack(np.float32, C)),
        )
        state = tile_state(tag)
        configure(tag, state, config)
        many(state, (q, scale, total), panel, weight, scale.shape[1], out, rows)
        release(tag, state)

    return named(kernel, tag.form)


class TileShare(Share):
    """A share that uses tiles, for which its process needs permission."""

    @property
    def address(self) -> int:
        request()
        return super().address


def shares(tag: Any) -> dict[str, Share]:
    return {f: TileShare(partial(int8_kernel, tag, f), SIGNATURE, f) for f in FORMATS}


SHARES, EMULATED_SHARES = shares(AMX), shares(EMULATED)
