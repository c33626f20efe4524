"""linear by products of bfloat16 pairs on AMX tiles, for weights of every format: variant
`amx_bf16`.

Weights and activations are rounded to bfloat16, as in linear_bf16.py, whose packed layout weights
of floats have: 32 elements of sixteen rows are a tile as they lie, 16 by 64 bytes. Weights in
blocks lie as the exact kernels stream them, and are lowered to such tiles once for all tokens of a
panel. Sums stay in tiles, two of tokens by two of rows. Every output is one chain over 32 elements
at a time, however many tokens there are: of floats a token alone takes a tile too, since there
memory sets the pace.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.block_scales import scales_of, unit_offset, unit_scale
from kernels.cpu.formats.decoding import CODINGS
from kernels.cpu.formats.layouts import LAYOUTS, Layout
from kernels.cpu.isa.amx import (
    AMX,
    EMULATED,
    FULL,
    configure,
    release,
    tile_dot_bf16,
    tile_load,
    tile_state,
    tile_store,
    tile_zero,
)
from kernels.cpu.isa.simd import (
    CACHE_LINE,
    f32x16,
    load,
    load_first,
    mul,
    prefetch,
    splat,
    store,
    store_first,
)
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.isa.simd_x86 import narrow, scaled_pairs
from kernels.cpu.linear.linear import LANES, NEVER, named, prefetcher
from kernels.cpu.linear.linear_amx_slices import ROW, ROWS, C, TileShare, product
from kernels.cpu.linear.linear_bf16 import PADDED, SIGNATURE
from kernels.cpu.linear.linear_int8 import four_codes
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, part

PANEL = 1024  # units of PADDED elements of sixteen tokens: a megabyte, half of the second cache
TILES = 16, 32  # of sixteen tokens: multiplied before the next weights are lowered
DEEPEST = PANEL // TILES[0]  # units of lowered weights: 64 KiB of sixteen rows
CHUNK = PADDED * LANES  # elements of a tile
TILE = 2 * CHUNK  # bytes
BLOCKS_SIGNATURE = "x: f32[tokens hidden], weight: u8[packed] -> out: f32[tokens out]"


@inner
def fetch(kept, at, out, token, row):
    """Load the outputs so far of sixteen tokens and rows, where they exist, to kept[at:]."""
    tokens, width = out.shape
    for t in range(min(ROWS, tokens - token)):
        sums = load_first(f32x16, out, (token + t) * width + row, width - row)
        store(kept, at + t * LANES, sums)


@inner
def put(out, token, row, kept, at):
    """Store sixteen tokens' outputs from kept[at:], where they exist."""
    tokens, width = out.shape
    for t in range(min(ROWS, tokens - token)):
        sums = load(f32x16, kept, at + t * LANES)
        store_first(out, (token + t) * width + row, sums, width - row)


def fill(tag: Any) -> Any:
    both = narrow(tag == AMX)

    @njit(inline="always")
    def sixteen(x, row, element):
        hidden = x.shape[1]
        prefetch(x, min(row + 2, x.shape[0] - 1) * hidden + element, 3)
        return load_first(f32x16, x, row * hidden + element, hidden - element)

    @inner
    def fill_tiles(source, panel, first, count, unit, depth):
        (x,), pairs = source, panel[0]
        for token in range((count + ROWS - 1) // ROWS * ROWS):
            row, at = first + min(token, count - 1), token // ROWS * depth * ROWS + token % ROWS
            for k in range(depth):
                element = (unit + k) * PADDED
                v = both(sixteen(x, row, element), sixteen(x, row, element + LANES))
                store(pairs, (at + k * ROWS) * PADDED, v)

    return fill_tiles


def lower(tag: Any, layout: Layout, factor: float) -> Any:
    """(weight, at, block, lowered, where, following): lower a group's block, counted from byte
    `at`, to a tile of pairs at lowered[where:], and prefetch the one `following` bytes further. A
    code times its scale is exact except for the final rounding, so this is the reference's decoded
    value rounded to the nearest bfloat16."""
    blocks, step, block_step = layout.blocks, layout.step, layout.block
    parts, payload, has_m = layout.parts, layout.payload, layout.m
    first, second = (four_codes(layout, LANES, half) for half in (0, 1))
    unit_d, unit_m = unit_scale(layout, LANES, factor), unit_offset(layout, LANES)
    scale_of, min_of = scales_of(layout, LANES)
    pairs_of = scaled_pairs(tag == AMX, shifts=layout.bfloat16)
    byte = np.float32(1 if layout.bfloat16 else 2**-8)
    lowered_by = np.float32(-layout.zero_point)

    @njit(inline="always")
    def powers(weight, own, d, m):
        """Scale and offset of a part's codes, whose integers are at byte `own`."""
        scale = scale_of(d, weight, own)
        lift = min_of(m, weight, own) if has_m else mul(scale, splat(f32x16, lowered_by))
        second = mul(scale, splat(f32x16, byte))
        third = mul(second, splat(f32x16, byte))
        return (scale, second, third, mul(third, splat(f32x16, byte))), lift

    @njit(inline="always")
    def four(lowered, where, codes, scale, offset):
        for i in range(4):
            low, high = pairs_of(codes[i], scale, offset)
            store(lowered, where + 2 * i * ROW, low)
            store(lowered, where + (2 * i + 1) * ROW, high)

    @inner
    def lower_one(weight, at, block, lowered, where, following):
        unit = at + block // blocks * step
        base, ends = unit + block % blocks * block_step, unit + blocks * block_step
        for line in range(base + following, base + following + block_step, CACHE_LINE):
            prefetch(weight, line, 2)
        d, m, own = unit_d(weight, ends), unit_m(weight, ends + 2 * LANES), base + payload
        scale, lift = powers(weight, own, d, m)
        four(lowered, where, first(weight, base), scale, lift)
        if parts == 2:
            scale, lift = powers(weight, own + LANES, d, m)
        four(lowered, where + TILE // 2, second(weight, base), scale, lift)

    return lower_one


@dataclass(frozen=True, slots=True)
class Source:
    """Source of tiles: size_of(units) bytes of the packed weight hold so many units of a group of
    rows, split in multiples of `whole` units. If they are not tiles already but `lowers`,
    prepare(weight, at, unit, tiles, where, following) lowers the unit at that index after byte
    `at`, else it prefetches it."""

    size_of: Any
    prepare: Any
    whole: int = 1
    lowers: bool = False


@njit(inline="always")
def size_of_tiles(units):
    return units * TILE


@njit(inline="always")
def prefetch_tile(weight, at, unit, tiles, where, following):
    for line in range(at + unit * TILE, at + (unit + 1) * TILE, CACHE_LINE):
        prefetch(weight, line, 2)


AS_THEY_ARE = Source(size_of_tiles, prefetch_tile)


def blocks_of(tag: Any, format: str) -> Source:
    layout = LAYOUTS[format]
    blocks, step = layout.blocks, layout.step

    @njit(inline="always")
    def size_of(units):
        return units // blocks * step

    return Source(size_of, lower(tag, layout, CODINGS[format].factor), blocks, lowers=True)


def multiply(tag: Any, source: Source) -> Any:
    lowers, prepare, size_of = source.lowers, source.prepare, source.size_of
    prefetch_next = prefetcher(1, TILE)

    @njit(inline="always")
    def prepare_some(weight, due, begin, end):
        """Prepare units begin to end of the next two groups, of `depth` each."""
        places, following, depth, tiles, to = due
        for number in range(begin, end):
            which = number // depth
            unit = number - which * depth
            where = to + (which * DEEPEST + unit) * TILE
            prepare(weight, places[which], unit, tiles, where, following)

    @inner
    def one(state, pairs, of, tiles, at, other, depth, tuning):
        for k in range(depth):
            if not lowers:
                prefetch_next(tiles, at + k * TILE, tuning)
                prefetch_next(tiles, other + k * TILE, tuning)
            tile_load(tag, state, 4, pairs, (of + k) * CHUNK, ROW)
            tile_load(tag, state, 6, tiles, at + k * TILE, ROW)
            tile_load(tag, state, 7, tiles, other + k * TILE, ROW)
            tile_dot_bf16(tag, state, 0, 4, 6)
            tile_dot_bf16(tag, state, 1, 4, 7)

    @inner
    def two(state, pairs, of, tiles, at, other, depth, weight, due, begin, end):
        """Multiply, and meanwhile prepare units begin to end of the next groups."""
        done, owed = begin, 0
        for k in range(depth):
            tile_load(tag, state, 4, pairs, (of + k) * CHUNK, ROW)
            tile_load(tag, state, 6, tiles, at + k * TILE, ROW)
            tile_load(tag, state, 7, tiles, other + k * TILE, ROW)
            tile_load(tag, state, 5, pairs, (of + depth + k) * CHUNK, ROW)
            tile_dot_bf16(tag, state, 0, 4, 6)
            tile_dot_bf16(tag, state, 1, 4, 7)
            tile_dot_bf16(tag, state, 2, 5, 6)
            tile_dot_bf16(tag, state, 3, 5, 7)
            owed += end - begin
            while owed >= depth:
                prepare_some(weight, due, done, done + 1)
                done, owed = done + 1, owed - depth

    @inner
    def begin_sums(state, out, at, other, stride, unit, several):
        """Load sums of one or two tiles of tokens by two of rows from `out`, or zero them."""
        if unit:
            tile_load(tag, state, 0, out, at, stride)
            tile_load(tag, state, 1, out, other, stride)
            if several:
                below = ROWS * stride // 4
                tile_load(tag, state, 2, out, at + below, stride)
                tile_load(tag, state, 3, out, other + below, stride)
        else:
            tile_zero(tag, state, 0)
            tile_zero(tag, state, 1)
            tile_zero(tag, state, 2)
            tile_zero(tag, state, 3)

    @inner
    def end_sums(state, out, at, other, stride, several):
        tile_store(tag, state, 0, out, at, stride)
        tile_store(tag, state, 1, out, other, stride)
        if several:
            below = ROWS * stride // 4
            tile_store(tag, state, 2, out, at + below, stride)
            tile_store(tag, state, 3, out, other + below, stride)

    @inner
    def multiply(state, panel, weight, out, first, count, rows, where):
        (pairs, kept, lowered, tuning), (unit, depth, units) = panel, where
        width, steps = out.shape[1], (count + 2 * ROWS - 1) // (2 * ROWS)
        group_bytes, skipped = size_of(units), size_of(unit)
        tiles, to = lowered if lowers else weight, 0
        if lowers:
            second = min(rows[0] + 1, rows[1] - 1)
            places = rows[0] * group_bytes + skipped, second * group_bytes + skipped
            prepare_some(weight, (places, 2 * group_bytes, depth, lowered, 0), 0, 2 * depth)
        for group in range(rows[0], rows[1], 2):
            last = min(group + 1, rows[1] - 1)  # the last one twice rather than none
            at, other = group * group_bytes + skipped, last * group_bytes + skipped
            places = at + 2 * group_bytes, min(group + 3, rows[1] - 1) * group_bytes + skipped
            if lowers:
                at, other, to = to, to + DEEPEST * TILE, 2 * DEEPEST * TILE - to
            due = places, 2 * group_bytes, depth, lowered, to
            most = 2 * depth if group + 2 < rows[1] else 0
            for token in range(0, count, 2 * ROWS):
                several, step = count - token > ROWS, token // (2 * ROWS)
                begin, end = step * most // steps, (step + 1) * most // steps
                row, last_row = group * LANES, last * LANES
                place = (first + token) * width
                inside = count - token >= (1 + several) * ROWS and width - last_row >= LANES
                if inside:
                    begin_sums(state, out, place + row, place + last_row, 4 * width, unit, several)
                else:
                    if unit:
                        for c in range(4):
                            at_token = first + token + c % 2 * ROWS
                            fetch(kept, c * C, out, at_token, last_row if c // 2 else row)
                    begin_sums(state, kept, 0, 2 * C, ROW, unit, several)
                of = token // ROWS * depth
                if several:
                    two(state, pairs, of, tiles, at, other, depth, weight, due, begin, end)
                else:
                    if lowers:
                        prepare_some(weight, due, begin, end)
                    one(state, pairs, of, tiles, at, other, depth, tuning)
                if inside:
                    end_sums(state, out, place + row, place + last_row, 4 * width, several)
                else:
                    end_sums(state, kept, 0, 2 * C, ROW, several)
                    for c in range(4):
                        at_token = first + token + c % 2 * ROWS
                        put(out, at_token, last_row if c // 2 else row, kept, c * C)

    return multiply


def bf16_kernel(tag: Any, format: str) -> Callable[..., None]:
    source = blocks_of(tag, format) if format in LAYOUTS else AS_THEY_ARE
    deepest = DEEPEST if source.lowers else PANEL
    many = product(PANEL, deepest, source.whole, fill(tag), multiply(tag, source), TILES)
    activations, sums = PANEL * ROWS * PADDED, 4 * C
    lowered = 4 * DEEPEST * TILE if source.lowers else 1

    @njit(inline="always")
    def run(x, weight, tuning, out, thread, n_threads):
        rows = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        if rows[0] == rows[1]:
            return
        memory = stack(np.uint16, activations), stack(np.float32, sums), stack(np.uint8, lowered)
        state = tile_state(tag)
        configure(tag, state, FULL)
        units = (x.shape[1] + PADDED - 1) // PADDED
        many(state, (x,), (*memory, tuning), weight, units, out, rows)
        release(tag, state)

    def of_floats(args, thread, n_threads):
        x, weight, tuning, out = arguments(args, SIGNATURE)
        run(x, weight, tuning, out, thread, n_threads)

    def of_blocks(args, thread, n_threads):
        x, weight, out = arguments(args, BLOCKS_SIGNATURE)
        run(x, weight, NEVER, out, thread, n_threads)

    return named(of_blocks if source.lowers else of_floats, tag.form)


def shares(tag: Any) -> dict[str, Share]:
    """Floats of all kinds are packed alike."""
    floats = TileShare(partial(bf16_kernel, tag, "F32"), SIGNATURE)
    blocks = {
        f: TileShare(partial(bf16_kernel, tag, f), BLOCKS_SIGNATURE, f)
        for f, layout in LAYOUTS.items()
        if tag == AMX or not layout.table
    }
    return {**dict.fromkeys(("F32", "F16", "BF16"), floats), **blocks}


SHARES, EMULATED_SHARES = shares(AMX), shares(EMULATED)
