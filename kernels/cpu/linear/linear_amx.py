"""linear for block formats and int8 activations on AMX tiles: variant `amx`.

One instruction multiplies a part of sixteen tokens by that of sixteen rows of the weight, which is
packed (layouts.py) almost as the tile, 8 by 64 bytes, or 4 by 64 where a block of 32 has two parts.
Its codes are unpacked and lowered to signed bytes once for all tokens of a panel. Every output is
the same chain over blocks, or superblocks, as in linear_blocks.py, so the bits are too.

By Intel's figures the product takes 16 cycles. Then its dots leave the tiles through memory, and
vectors scale them, 2 instructions a cycle: 3 for each token of a block, so 24 cycles are the
bottleneck; for a superblock's part, which is scaled by integers, 2. Two parts are in flight, so
that one is scaled while the other waits for its dots. For few tokens, vectors alone are faster.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.block_scales import integers_of, unit_offset, unit_scale
from kernels.cpu.formats.layouts import BLOCK, GRIDS, LAYOUTS, Layout
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
    i16x32,
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
    add_unit,
    add_unit_with_offset,
    fma_outer,
    zeros,
)
from kernels.cpu.linear import linear, linear_blocks
from kernels.cpu.linear.linear import LANES, Blocking, from_here, named, prefetch_part
from kernels.cpu.linear.linear_blocks import SIGNATURE, extra_type, extras_of, total_of
from kernels.cpu.linear.linear_int8 import AVX512_VNNI, GENERIC, four_codes
from kernels.cpu.linear.linear_superblocks import (
    dot_totals,
    pairs_at,
    pairs_of,
    times_integers,
)
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
FORMATS = tuple(f for f, layout in LAYOUTS.items() if not layout.table and f not in GRIDS)
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
    """Lay out activations, a unit's scale and, where weights have an offset, its factor: a block's
    total times the scale, or pairs of a superblock's totals."""
    blocks, has_m, total = layout.blocks, layout.m, total_of(layout)
    parts, pairs, superblocks = layout.parts, pairs_of(layout), layout.blocks > 1

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
            for u in range(depth // blocks):
                b, place = unit + u * blocks, tile // blocks + u
                scales[place * ROWS + lane] = scale[row, b]
                for p in range(pairs if has_m and superblocks else 0):
                    low = total(q, totals, row, b + 2 * p // parts, 2 * p % parts)
                    high = total(q, totals, row, b + (2 * p + 1) // parts, (2 * p + 1) % parts)
                    extras[(place * pairs + p) * ROWS + lane] = (low & 0xFFFF) | (high << 16)
                if has_m and not superblocks:
                    extras[place * ROWS + lane] = scale[row, b] * np.float32(totals[row, b])

    return fill_tiles


def lower(layout: Layout) -> Any:
    """(weight, at, depth, lowered, integers, mins, scales, offsets): lower a group's blocks to
    tiles of signed bytes, each part's integers and pairs of mins, and each unit's d and m."""
    blocks, step, block_step = layout.blocks, layout.step, layout.block
    parts, payload, has_m = layout.parts, layout.payload, layout.m
    has_integers, pairs = layout.integer_scales, pairs_of(layout) if layout.mins else 0
    first, second = (four_codes(layout, LANES, half) for half in (0, 1))
    scale, offset = unit_scale(layout, LANES), unit_offset(layout, LANES)
    integer_of, min_of = integers_of(layout, LANES)
    mins_of = pairs_at(layout, min_of)
    zero_point = np.full(ROW, layout.zero_point, np.uint8)

    @njit(inline="always")
    def four(lowered, at, codes):
        for i in range(4):
            store(lowered, at + i * ROW, less(codes[i], load(i8x64, zero_point, 0)))

    @inner
    def lower_all(weight, at, depth, lowered, integers, mins, scales, offsets):
        for u in range(depth // blocks):
            base = at + u * step
            ends = base + blocks * block_step
            store(scales, u * LANES, scale(weight, ends))
            if has_m:
                store(offsets, u * LANES, offset(weight, ends + 2 * LANES))
            for b in range(blocks):
                block, to = base + b * block_step, u * blocks + b
                four(lowered, 8 * to * ROW, first(weight, block))
                four(lowered, (8 * to + 4) * ROW, second(weight, block))
                for p in range(parts if has_integers else 0):
                    own, place = block + payload + p * LANES, (to * parts + p) * LANES
                    store(integers, place, integer_of(weight, own))
            for pair in range(pairs):
                store(mins, (u * pairs + pair) * 2 * LANES, mins_of(weight, base, pair))

    return lower_all


def adding(layout: Layout) -> Any:
    """(sums, totals, exact, weights, met, unit, piece) -> sums and totals with a part's exact dots
    added: to the sums, or to the superblock's totals, which its last part adds to the sums. `unit`
    is the place of the first unit in the panel."""
    parts, blocks, has_m = layout.parts, layout.blocks, layout.m
    pieces, pairs, has_integers = parts * blocks, pairs_of(layout), layout.integer_scales
    times = times_integers(layout)

    @njit(inline="always")
    def to_sums(sums, totals, exact, weights, met, unit, piece):
        (_, _, scales, offsets), (token_scales, extras) = weights, met
        place = (unit + piece) * ROWS
        sums = add_scaled(sums, exact, load(f32x16, scales, piece * LANES), token_scales, place)
        if has_m:
            sums = fma_outer(sums, load(f32x16, offsets, piece * LANES), extras, place)
        return sums, totals

    @njit(inline="always")
    def to_totals(sums, totals, exact, weights, met, unit, piece):
        (integers, mins, scales, offsets), (token_scales, extras) = weights, met
        totals = times(totals, exact, load(i32x16, integers, piece * LANES if has_integers else 0))
        if piece % pieces != pieces - 1:
            return sums, totals
        u = piece // pieces
        place, d = (unit + u) * ROWS, load(f32x16, scales, u * LANES)
        if not has_m:
            return add_unit(sums, totals, d, token_scales, place), zeros(i32x16, ROWS)
        found = zeros(i32x16, ROWS)
        for pair in range(pairs):
            of_rows = load(i16x32, mins, (u * pairs + pair) * 2 * LANES)
            found = dot_totals(found, of_rows, extras, place * pairs + pair * ROWS)
        m = load(f32x16, offsets, u * LANES)
        sums = add_unit_with_offset(sums, totals, d, found, m, token_scales, place)
        return sums, zeros(i32x16, ROWS)

    return to_totals if blocks > 1 else to_sums


def multiply(tag: Any, layout: Layout) -> Any:
    blocks, step, parts = layout.blocks, layout.step, layout.parts
    lower_all, add_exact = lower(layout), adding(layout)
    width = BLOCK // parts
    own_integers, own_mins, own_scales = sizes_of_group(layout)

    @njit(inline="always")
    def issue(state, c, a, w, where, piece, dots):
        """Compute a part's dots and store them to the slot piece % UNDER_WAY of `dots`."""
        q, block, lowered = where
        tile_zero(tag, state, c)
        at = block * ROWS * BLOCK + piece // parts * ROWS * BLOCK + piece % parts * width
        tile_load(tag, state, a, q, at, BLOCK)
        tile_load(tag, state, w, lowered, piece * LANES * width, ROW)
        tile_dot_i8(tag, state, c, a, w)
        tile_store(tag, state, c, dots, piece % UNDER_WAY * C, ROW)

    @njit(inline="always")
    def add(sums, totals, dots, weights, met, unit, piece):
        exact = load_rows(zeros(i32x16, ROWS), dots, piece % UNDER_WAY * C, LANES)
        return add_exact(sums, totals, exact, weights, met, unit // blocks, piece)

    @njit(inline="always")
    def own_of(lowered_weights, which):
        """The lowered weights, and the rest, of one of the joint groups."""
        lowered, integers, mins, scales, offsets = lowered_weights
        rest = integers[which * own_integers :], mins[which * own_mins :]
        floats = scales[which * own_scales :], offsets[which * own_scales :]
        return lowered[which * WEIGHTS :], (rest[0], rest[1], floats[0], floats[1])

    @inner
    def tile(state, q, met, unit, lowered, weights, depth, dots, sums):
        """Sixteen tokens of the panel from its block `unit`, a group of rows, `depth` blocks. A
        part's dots are computed two parts before they are added, since they leave tiles through
        memory."""
        pieces, where, totals = depth * parts, (q, unit, lowered), zeros(i32x16, ROWS)
        issue(state, 0, 4, 5, where, 0, dots)
        if pieces > 1:
            issue(state, 1, 6, 7, where, 1, dots)
        piece = 0
        while piece + UNDER_WAY + 2 <= pieces:
            issue(state, 2, 4, 5, where, piece + 2, dots)
            sums, totals = add(sums, totals, dots, weights, met, unit, piece)
            issue(state, 3, 6, 7, where, piece + 3, dots)
            sums, totals = add(sums, totals, dots, weights, met, unit, piece + 1)
            issue(state, 0, 4, 5, where, piece + 4, dots)
            sums, totals = add(sums, totals, dots, weights, met, unit, piece + 2)
            issue(state, 1, 6, 7, where, piece + 5, dots)
            sums, totals = add(sums, totals, dots, weights, met, unit, piece + 3)
            piece += UNDER_WAY
        for last in range(piece, pieces):
            if last + 2 < pieces:
                issue(state, 0, 4, 5, where, last + 2, dots)
            sums, totals = add(sums, totals, dots, weights, met, unit, last)
        return sums

    @inner
    def multiply(state, panel, weight, out, first, count, rows, where):
        (q, token_scales, extras), lowered_weights, (dots, kept) = panel
        met, (unit, depth, units) = (token_scales, extras), where
        group_bytes, used = units // blocks * step, depth // blocks * step
        tokens, width = out.shape
        begin, end = rows
        for together in range(begin, end, TOGETHER):
            last = min(together + TOGETHER, end)
            for group in range(together, last):
                lowered, rest = own_of(lowered_weights, group - together)
                at = group * group_bytes + unit // blocks * step
                lower_all(weight, at, depth, lowered, rest[0], rest[1], rest[2], rest[3])
            for token in range(0, count, ROWS):
                for group in range(together, last):
                    lowered, rest = own_of(lowered_weights, group - together)
                    following = (group + TOGETHER) * group_bytes + unit // blocks * step
                    tiles = (count + ROWS - 1) // ROWS
                    prefetch_part(weight, following, used, token // ROWS, tiles)
                    prefetch_outputs(out, first + token, group * LANES)
                    sums = zeros(f32x16, ROWS)
                    if unit:
                        fetch(kept, 0, out, first + token, group * LANES)
                        sums = load_rows(sums, kept, 0, LANES)
                    of = token // ROWS * depth
                    sums = tile(state, q, met, of, lowered, rest, depth, dots, sums)
                    at_row = first + token, group * LANES
                    if tokens - at_row[0] >= ROWS and width - at_row[1] >= LANES:
                        store_rows(out, at_row[0] * width + at_row[1], width, sums)
                    else:
                        store_rows(kept, 0, LANES, sums)
                        put(out, at_row[0], at_row[1], kept, 0)

    return multiply


def sizes_of_group(layout: Layout) -> tuple[int, int, int]:
    """Elements of a group's integers, pairs of mins, and scales or offsets, lowered."""
    units = DEEPEST // layout.blocks
    integers = DEEPEST * layout.parts * LANES if layout.integer_scales else LANES
    mins = 2 * LANES * units * pairs_of(layout) if layout.mins else 1
    return integers, mins, units * LANES


def int8_kernel(tag: Any, format: str) -> Callable[..., None]:
    layout, vectors = LAYOUTS[format], AVX512_VNNI if tag == AMX else GENERIC
    vectors = replace(vectors, blocking=FEW, four_of_two=None)
    few = inner(linear_blocks.int8_kernel(vectors, "few", format))
    many = product(PANEL, DEEPEST, layout.blocks, fill(layout), multiply(tag, layout))
    # dots, then activations and weights by turns
    width = BLOCK // layout.parts
    config = tile_config(*[(ROWS, ROW)] * UNDER_WAY, *[(ROWS, width), (width // 4, ROW)] * 2)
    activations, met = PANEL * ROWS * BLOCK, PANEL // layout.blocks * ROWS
    extras = met * extras_of(vectors, layout) if layout.m else 1
    extra, weights, dots = extra_type(layout), TOGETHER * WEIGHTS, UNDER_WAY * C
    integers, mins, scales = (TOGETHER * size for size in sizes_of_group(layout))

    def kernel(args, thread, n_threads):
        q, scale, total, weight, tuning, out = arguments(args, SIGNATURE)
        if not from_here(out.shape[0], tuning[TILES_FROM_AT]):
            few(args, thread, n_threads)
            return
        rows = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        if rows[0] == rows[1]:
            return
        panel = (
            (stack(np.int8, activations), stack(np.float32, met), stack(extra, extras)),
            (
                stack(np.int8, weights),
                stack(np.int32, integers),
                stack(np.int16, mins),
                stack(np.float32, scales),
                stack(np.float32, scales),
            ),
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
