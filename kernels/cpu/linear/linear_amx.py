"""linear for block formats and int8 activations on AMX tiles: variant `amx`.

One instruction multiplies a part of sixteen tokens with that of sixteen rows of the weight, which
lies packed (layouts.py) almost as the tile it is, 8 by 64 bytes, or 4 by 64 where a block of 32 has
two parts. Its codes are unpacked and lowered to signed bytes once for all tokens of a panel. Every
output is the same chain over parts as in linear_blocks.py, so the bits are too.

By Intel's figures the product takes 16 cycles. Then its dots have to leave the tiles by way of
memory, and vectors scale them: 3 instructions for each token, 2 a cycle, so 24 cycles set the pace.
Two parts are under way at once, for one to be scaled while the other waits for its dots. For
a few tokens, vectors alone are faster.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.block_scales import integers_of, offset_scale
from kernels.cpu.formats.layouts import BLOCK, LATTICES, LAYOUTS, Layout
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
    convert,
    f16x16,
    f32x16,
    i8x32,
    i8x64,
    i32x16,
    less,
    load,
    load_first,
    mul,
    prefetch_to_write,
    store,
    store_first,
)
from kernels.cpu.isa.simd_shuffle import load_rows, stack, store_rows
from kernels.cpu.isa.tiles import add_scaled, fma_outer, zeros
from kernels.cpu.linear import linear_blocks
from kernels.cpu.linear.linear import LANES, STREAM, Blocking, ask_for_part, named
from kernels.cpu.linear.linear_blocks import SIGNATURE, total_of
from kernels.cpu.linear.linear_int8 import AVX512_VNNI, GENERIC, four_codes
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, part
from kernels.knob import Knob

ROWS = 16  # of a tile: tokens
ROW = 64  # bytes of a tile's row
C = ROWS * LANES  # elements of a tile of sums
PANEL = 1536  # blocks of sixteen tokens: 768 KiB, in the second level of cache
DEEPEST = 192  # blocks of lowered weights: 96 KiB
TILES = 8, 16  # of sixteen tokens: what meets weights before the next ones have to be lowered
UNDER_WAY = 4  # tiles of dots
TOGETHER = 4  # groups of rows: outputs of a token that are neighbours
WEIGHTS = DEEPEST * LANES * BLOCK  # bytes of a group's lowered weights
ALONE = Knob("alone", (1, 2, 4, 8, 12), 4, "so many tokens go by vectors alone", (2, 4, 8, 12))
KNOBS = (*STREAM, ALONE)
ALONE_AT = len(STREAM)
FORMATS = tuple(f for f, layout in LAYOUTS.items() if not layout.table and f not in LATTICES)
FEW = Blocking((4, 2, 1), tokens=4, units=768)


@inner
def fetch(kept, at, out, token, row):
    """Outputs so far of sixteen tokens and rows, as far as there are any, to kept[at:]."""
    tokens, width = out.shape
    for t in range(min(ROWS, tokens - token)):
        sums = load_first(f32x16, out, (token + t) * width + row, width - row)
        store(kept, at + t * LANES, sums)


@njit(inline="always")
def ask_for_outputs(out, token, row):
    """The lines of sixteen tokens' outputs: who stores into one that is far waits for all of it."""
    tokens, width = out.shape
    for t in range(min(ROWS, tokens - token)):
        prefetch_to_write(out, (token + t) * width + row)


@inner
def put(out, token, row, kept, at):
    """Sixteen tokens' outputs from kept[at:], as far as there are so many."""
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
    """Activations, their scales and, where weights have an offset, what meets it in each part."""
    parts, has_m, total = layout.parts, layout.m, total_of(layout)

    @inner
    def fill_tiles(source, panel, first, count, unit, depth):
        (q, scale, totals), (bytes_, scales, extras) = source, panel[0]
        hidden = q.shape[1]
        for token in range((count + ROWS - 1) // ROWS * ROWS):
            row = first + min(token, count - 1)
            for b in range(depth):
                tile = token // ROWS * depth + b
                at = tile * ROWS + token % ROWS
                store(bytes_, at * BLOCK, load(i8x32, q, row * hidden + (unit + b) * BLOCK))
                scales[at] = scale[row, unit + b]
                if has_m:
                    for p in range(parts):
                        found = total(q, totals, row, unit + b, p)
                        met = scale[row, unit + b] * np.float32(found)
                        extras[(tile * parts + p) * ROWS + token % ROWS] = met

    return fill_tiles


def lower(layout: Layout) -> Any:
    """(weight, at, depth, lowered, scales, offsets): a group's blocks as tiles of signed bytes,
    and for each part what multiplies its dots, and what multiplies its activations' total."""
    blocks, step, block_step = layout.blocks, layout.step, layout.block
    parts, payload, integers = layout.parts, layout.payload, layout.integers
    has_m, floors = layout.m, layout.floors
    first, second = (four_codes(layout, LANES, half) for half in (0, 1))
    part_of, floor_of = integers_of(layout, LANES)
    offset = offset_scale(layout, LANES)
    raised = np.full(ROW, layout.raised, np.uint8)

    @njit(inline="always")
    def four(lowered, at, codes):
        for i in range(4):
            store(lowered, at + i * ROW, less(codes[i], load(i8x64, raised, 0)))

    @inner
    def lower_all(weight, at, depth, lowered, scales, offsets):
        for b in range(depth):
            base = at + b // blocks * step
            block, ends = base + b % blocks * block_step, base + blocks * block_step
            four(lowered, 8 * b * ROW, first(weight, block))
            four(lowered, (8 * b + 4) * ROW, second(weight, block))
            d, m = convert(f32x16, load(f16x16, weight, ends)), offset(weight, ends + 2 * LANES)
            for p in range(parts):
                own, place = block + payload + p * LANES, (b * parts + p) * LANES
                store(scales, place, mul(d, part_of(weight, own)) if integers else d)
                if has_m:
                    store(offsets, place, mul(m, floor_of(weight, own)) if floors else m)

    return lower_all


def multiply(tag: Any, layout: Layout) -> Any:
    blocks, step, parts, has_m = layout.blocks, layout.step, layout.parts, layout.m
    lower_all = lower(layout)
    width = BLOCK // parts

    @njit(inline="always")
    def issue(state, c, a, w, where, piece, dots):
        """Have a part's dots made and put where `dots` has place for those of piece % UNDER_WAY."""
        q, block, lowered = where
        tile_zero(tag, state, c)
        at = block * ROWS * BLOCK + piece // parts * ROWS * BLOCK + piece % parts * width
        tile_load(tag, state, a, q, at, BLOCK)
        tile_load(tag, state, w, lowered, piece * LANES * width, ROW)
        tile_dot_i8(tag, state, c, a, w)
        tile_store(tag, state, c, dots, piece % UNDER_WAY * C, ROW)

    @njit(inline="always")
    def add(sums, dots, weights, met, unit, piece):
        """A part's dots, and after a block's last part what the offsets give."""
        (scales, offsets), (token_scales, extras), b = weights, met, piece // parts
        exact = load_rows(zeros(i32x16, ROWS), dots, piece % UNDER_WAY * C, LANES)
        w = load(f32x16, scales, piece * LANES)
        sums = add_scaled(sums, exact, w, token_scales, (unit + b) * ROWS)
        if has_m and piece % parts == parts - 1:
            for p in range(parts):
                m = load(f32x16, offsets, (b * parts + p) * LANES)
                sums = fma_outer(sums, m, extras, ((unit + b) * parts + p) * ROWS)
        return sums

    @njit(inline="always")
    def own_of(lowered_weights, which):
        """The lowered weights, scales and offsets of one of the groups that are together."""
        lowered, scales, offsets = lowered_weights
        at = which * DEEPEST * parts * LANES
        return lowered[which * WEIGHTS :], scales[at:], offsets[at if has_m else 0 :]

    @inner
    def tile(state, q, met, unit, lowered, weights, depth, dots, sums):
        """Sixteen tokens of the panel from its unit `unit` on, a group of rows, `depth` blocks. A
        part's dots are made two parts before they are added: they leave tiles by way of memory."""
        pieces, where = depth * parts, (q, unit, lowered)
        issue(state, 0, 4, 5, where, 0, dots)
        if pieces > 1:
            issue(state, 1, 6, 7, where, 1, dots)
        piece = 0
        while piece + UNDER_WAY + 2 <= pieces:
            issue(state, 2, 4, 5, where, piece + 2, dots)
            sums = add(sums, dots, weights, met, unit, piece)
            issue(state, 3, 6, 7, where, piece + 3, dots)
            sums = add(sums, dots, weights, met, unit, piece + 1)
            issue(state, 0, 4, 5, where, piece + 4, dots)
            sums = add(sums, dots, weights, met, unit, piece + 2)
            issue(state, 1, 6, 7, where, piece + 5, dots)
            sums = add(sums, dots, weights, met, unit, piece + 3)
            piece += UNDER_WAY
        for last in range(piece, pieces):
            if last + 2 < pieces:
                issue(state, 0, 4, 5, where, last + 2, dots)
            sums = add(sums, dots, weights, met, unit, last)
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
                lowered, scales, offsets = own_of(lowered_weights, group - together)
                at = group * group_bytes + unit // blocks * step
                lower_all(weight, at, depth, lowered, scales, offsets)
            for token in range(0, count, ROWS):
                for group in range(together, last):
                    lowered, scales, offsets = own_of(lowered_weights, group - together)
                    following = (group + TOGETHER) * group_bytes + unit // blocks * step
                    tiles = (count + ROWS - 1) // ROWS
                    ask_for_part(weight, following, used, token // ROWS, tiles)
                    ask_for_outputs(out, first + token, group * LANES)
                    sums = zeros(f32x16, ROWS)
                    if unit:
                        fetch(kept, 0, out, first + token, group * LANES)
                        sums = load_rows(sums, kept, 0, LANES)
                    of = token // ROWS * depth
                    sums = tile(state, q, met, of, lowered, (scales, offsets), depth, dots, sums)
                    at_row = first + token, group * LANES
                    if tokens - at_row[0] >= ROWS and width - at_row[1] >= LANES:
                        store_rows(out, at_row[0] * width + at_row[1], width, sums)
                    else:
                        store_rows(kept, 0, LANES, sums)
                        put(out, at_row[0], at_row[1], kept, 0)

    return multiply


def int8_kernel(tag: Any, format: str) -> Callable[..., None]:
    layout, vectors = LAYOUTS[format], AVX512_VNNI if tag == AMX else GENERIC
    vectors = replace(vectors, blocking=FEW, any_of_two=None)
    few = inner(linear_blocks.int8_kernel(vectors, "few", format))
    many = product(PANEL, DEEPEST, layout.blocks, fill(layout), multiply(tag, layout))
    # dots, then activations and weights by turns
    parts, width = layout.parts, BLOCK // layout.parts
    config = tile_config(*[(ROWS, ROW)] * UNDER_WAY, *[(ROWS, width), (width // 4, ROW)] * 2)
    activations, met = PANEL * ROWS * BLOCK, PANEL * ROWS
    extras = met * parts if layout.m else 1
    weights, dots = TOGETHER * WEIGHTS, UNDER_WAY * C
    scales = TOGETHER * DEEPEST * parts * LANES
    offsets = scales if layout.m else 1

    def kernel(block, thread, n_threads):
        q, scale, total, weight, tuning, out = arguments(block, SIGNATURE)
        if out.shape[0] <= tuning[ALONE_AT]:
            few(block, thread, n_threads)
            return
        rows = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        if rows[0] == rows[1]:
            return
        panel = (
            (stack(np.int8, activations), stack(np.float32, met), stack(np.float32, extras)),
            (stack(np.int8, weights), stack(np.float32, scales), stack(np.float32, offsets)),
            (stack(np.int32, dots), stack(np.float32, C)),
        )
        state = tile_state(tag)
        configure(tag, state, config)
        many(state, (q, scale, total), panel, weight, scale.shape[1], out, rows)
        release(tag, state)

    return named(kernel, tag.form)


class TileShare(Share):
    """A share that works tiles, for which its process has to ask before it runs."""

    @property
    def address(self) -> int:
        request()
        return super().address


def shares(tag: Any) -> dict[str, Share]:
    return {f: TileShare(partial(int8_kernel, tag, f), SIGNATURE, f) for f in FORMATS}


SHARES, EMULATED_SHARES = shares(AMX), shares(EMULATED)
