"""linear for block formats and int8 activations on AMX tiles: variant `amx`. The loops are
linear_amx_slices.py's; superblocks are linear_amx_superblocks.py's.

One instruction multiplies a block of sixteen tokens by that of sixteen rows of the weight, which is
packed (layouts.py) almost as the tile, 8 by 64 bytes. Its codes are lowered to signed bytes. Every
output is the same chain over blocks as in linear_blocks.py, so the bits are too.

By Intel's figures the product takes 16 cycles. Then its dots leave the tiles through memory, and
vectors scale them, 2 instructions a cycle: 3 for each token of a block, so 24 cycles are the
bottleneck. For few tokens, vectors alone are faster.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numba import njit

import kernels.cpu.linear.linear_amx_superblocks as superblocks
from kernels.cpu.formats.block_scales import unit_offset, unit_scale
from kernels.cpu.formats.decoding import CODINGS
from kernels.cpu.formats.layouts import BLOCK, LAYOUTS, Layout
from kernels.cpu.isa.amx import (
    AMX,
    EMULATED,
    FULL,
    configure,
    release,
    tile_config,
    tile_dot_i8,
    tile_load,
    tile_state,
    tile_store,
    tile_zero,
)
from kernels.cpu.isa.simd import (
    CACHE_LINE,
    f32x16,
    i8x32,
    i8x64,
    i32x16,
    less,
    load,
    prefetch,
    store,
)
from kernels.cpu.isa.simd_shuffle import load_rows, stack, store_rows
from kernels.cpu.isa.tiles import (
    add_scaled,
    fma_outer,
    zeros,
)
from kernels.cpu.linear import linear, linear_blocks
from kernels.cpu.linear.linear import LANES, Blocking, from_here, named
from kernels.cpu.linear.linear_amx_slices import (
    AHEAD,
    GROUP,
    LOWERED,
    PANEL,
    ROW,
    ROWS,
    SLICE,
    TOGETHER,
    C,
    Slices,
    TileShare,
    multiply,
    product,
)
from kernels.cpu.linear.linear_blocks import SIGNATURE, extra_type
from kernels.cpu.linear.linear_int8 import AVX512_VNNI, GENERIC, four_codes
from kernels.cpu.linear.linear_superblocks import pairs_of
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, part
from kernels.knob import Knob

BYTES = BLOCK * LANES  # of a lowered block
FLOATS = 2 * SLICE * LANES  # d and m of a slice's blocks
TILES_FROM = Knob(
    "tiles_from",
    (2, 3, 5, 9, 13),
    9,
    "from how many tokens on tiles meet them, and not vectors alone",
    (2, 4, 8, 12),
    crossover=True,
)
KNOBS = (*linear.KNOBS, TILES_FROM)
TILES_FROM_AT = len(linear.KNOBS)
# tiles of dots, then activations and weights by turns
BLOCKWISE = tile_config(*[(ROWS, ROW)] * 4, *[(ROWS, BLOCK), (BLOCK // 4, ROW)] * 2)
FEW = Blocking((4, 2, 1), tokens=4, units=768)


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


def lower(layout: Layout, factor: float) -> Any:
    """Slices.lower: lower blocks to tiles of signed bytes, each with its d and m."""
    step, has_m, payload = layout.step, layout.m, layout.block
    first, second = (four_codes(layout, LANES, half) for half in (0, 1))
    scale, offset = unit_scale(layout, LANES, factor), unit_offset(layout, LANES)
    zero_point = np.full(ROW, layout.zero_point, np.uint8)

    @njit(inline="always")
    def four(lowered, at, codes):
        for i in range(4):
            store(lowered, at + i * ROW, less(codes[i], load(i8x64, zero_point, 0)))

    @inner
    def lower_some(weight, at, begin, end, weights, half):
        lowered, floats, _ = weights
        for b in range(begin, end):
            block, to = at + b * step, half * LOWERED + b * BYTES
            own = half * FLOATS + 2 * b * LANES
            for line in range(0, step, CACHE_LINE):
                prefetch(weight, block + AHEAD * SLICE * step + line, 2)
            store(floats, own, scale(weight, block + payload))
            if has_m:
                store(floats, own + LANES, offset(weight, block + payload + 2 * LANES))
            four(lowered, to, first(weight, block))
            four(lowered, to + BYTES // 2, second(weight, block))

    return lower_some


def slices(tag: Any, layout: Layout, factor: float) -> Slices:
    has_m = layout.m

    @njit(inline="always")
    def dot(state, c, a, w, panel, now, block):
        """Compute a block's dots."""
        ((q, _, _), (lowered, _, _), (dots, _)), (_, _, place, _, half, _) = panel, now
        tile_zero(tag, state, c)
        tile_load(tag, state, a, q, (place + block) * ROWS * BLOCK, BLOCK)
        tile_load(tag, state, w, lowered, half * LOWERED + block * BYTES, ROW)
        tile_dot_i8(tag, state, c, a, w)
        tile_store(tag, state, c, dots, block * C, ROW)

    @njit(inline="always")
    def add(sums, panel, due, block):
        ((_, scales, extras), (_, floats, _), (dots, _)), (_, _, place, _, half, _) = panel, due
        exact = load_rows(zeros(i32x16, ROWS), dots, block * C, LANES)
        met, own = (place + block) * ROWS, half * FLOATS + 2 * block * LANES
        sums = add_scaled(sums, exact, load(f32x16, floats, own), scales, met)
        if has_m:
            sums = fma_outer(sums, load(f32x16, floats, own + LANES), extras, met)
        return sums

    @njit(inline="always")
    def whole(state, panel, now, due):
        """A step between whole slices: what a block's dots were is added, then replaced."""
        (_, own), (_, at, _, _, _, _) = panel[2], due
        sums = load_rows(zeros(f32x16, ROWS), own, at, LANES)
        for block in range(0, SLICE, 4):
            sums = add(sums, panel, due, block)
            dot(state, 0, 4, 5, panel, now, block)
            sums = add(sums, panel, due, block + 1)
            dot(state, 1, 6, 7, panel, now, block + 1)
            sums = add(sums, panel, due, block + 2)
            dot(state, 2, 4, 5, panel, now, block + 2)
            sums = add(sums, panel, due, block + 3)
            dot(state, 3, 6, 7, panel, now, block + 3)
        store_rows(own, at, LANES, sums)

    @inner
    def finish(panel, due):
        (_, own), (_, at, _, _, _, blocks) = panel[2], due
        sums = load_rows(zeros(f32x16, ROWS), own, at, LANES)
        for block in range(blocks):
            sums = add(sums, panel, due, block)
        store_rows(own, at, LANES, sums)

    @njit(inline="always")
    def step(state, panel, now, due):
        blocks, before = now[5], due[5]
        if blocks == before == SLICE:
            whole(state, panel, now, due)
            return
        finish(panel, due)
        for block in range(blocks):
            dot(state, 0, 4, 5, panel, now, block)

    return Slices(1, lower(layout, factor), step, finish)


def int8_kernel(tag: Any, format: str) -> Callable[..., None]:
    layout, factor = LAYOUTS[format], CODINGS[format].factor
    hardware = AVX512_VNNI if tag == AMX else replace(GENERIC, tables=True)  # as tiles are packed
    vectors = replace(hardware, blocking=FEW, four_of_two=None)
    few = inner(linear_blocks.int8_kernel(vectors, "few", format))
    if layout.blocks == 1:
        filling, ways, config = fill(layout), slices(tag, layout, factor), BLOCKWISE
        extras = PANEL * ROWS if layout.m else 1
    else:
        filling, config = superblocks.fill(layout), FULL
        ways = superblocks.slices(tag, layout, factor, format)
        extras = PANEL // SLICE * ROWS * pairs_of(layout) if layout.mins else 1
    many = product(PANEL, PANEL, SLICE, filling, multiply(layout, ways))
    activations, met, extra = PANEL * ROWS * BLOCK, PANEL * ROWS, extra_type(layout)
    # as many as either kind of slice needs
    lowered, floats, mins = 2 * LOWERED, 2 * FLOATS, 2 * superblocks.MINS
    dots, sums = SLICE * C, 2 * TOGETHER * GROUP

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
            (stack(np.int8, lowered), stack(np.float32, floats), stack(np.int16, mins)),
            (stack(np.int32, dots), stack(np.float32, sums)),
        )
        state = tile_state(tag)
        configure(tag, state, config)
        many(state, (q, scale, total), panel, weight, scale.shape[1], out, rows)
        release(tag, state)

    return named(kernel, tag.form)


def shares(tag: Any) -> dict[str, Share]:
    return {f: TileShare(partial(int8_kernel, tag, f), SIGNATURE, f) for f in LAYOUTS}


SHARES, EMULATED_SHARES = shares(AMX), shares(EMULATED)
