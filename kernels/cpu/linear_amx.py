"""linear on AMX tiles: variant `amx`, for int8 activations, and for bfloat16 ones in place of floats.

One instruction multiplies sixteen tokens with sixteen rows of the weight over 64 bytes of each. The
packed layouts are those of linear_int8.py and linear_bf16.py: as they lie, a block's bytes are a
tile of 8 by 64 bytes and 32 elements in pairs one of 16 by 64.

- int8: every output is the same chain over blocks as in linear_int8.py, so the bits are too. The
  bytes of a group of rows are lowered to signed ones once for all tokens of a panel. A block fills
  half a tile's depth and its dots leave the tiles to be scaled, which takes longer than the
  product, so two blocks are under way at once. For FEWEST tokens and less vectors are faster.
- bfloat16: sums stay in tiles, two of tokens by two of rows. Every output is one chain over 32
  elements at a time, however many tokens there are; a token alone takes a tile too, since there
  memory sets the pace.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.amx import (
    AMX,
    EMULATED,
    FULL,
    configure,
    release,
    tile_config,
    tile_dot_bf16,
    tile_dot_i8,
    tile_load,
    tile_state,
    tile_store,
    tile_zero,
)
from kernels.cpu.linear import LANES, Blocking, named
from kernels.cpu.linear_bf16 import PADDED
from kernels.cpu.linear_bf16 import SIGNATURE as BF16_SIGNATURE
from kernels.cpu.linear_int8 import AVX512_VNNI, GENERIC, PAYLOAD, RAISED, int8_kernel
from kernels.cpu.linear_int8 import SIGNATURE as INT8_SIGNATURE
from kernels.cpu.share import Share, arguments, by_format, part
from kernels.cpu.simd import (
    bf16x16,
    convert,
    f16x16,
    f32x16,
    high_nibbles,
    i8x32,
    i8x64,
    i32x16,
    less,
    load,
    load_first,
    low_nibbles,
    store,
    store_first,
)
from kernels.cpu.simd_shuffle import load_rows, stack, store_rows
from kernels.cpu.tiles import add_scaled, zeros

ROWS = 16  # of a tile: tokens
ROW = 64  # bytes of a tile's row
C = ROWS * LANES  # elements of a tile of sums
BLOCK = 32  # bytes of a token in a block, or elements of a chunk
TOKENS, UNITS = 64, 64  # of a panel: with its units, a quarter of a megabyte at most
FEWEST = 4

# Sums, then activations and weights, of two blocks.
INT8 = tile_config(*[(ROWS, ROW)] * 2, *[(ROWS, BLOCK), (BLOCK // 4, ROW)] * 2)
FEW = Blocking((4, 2, 1), tokens=4, units=768)


@njit
def fetch(kept, at, out, token, row):
    """Outputs so far of sixteen tokens and rows, as far as there are any, to kept[at:]."""
    tokens, width = out.shape
    for t in range(min(ROWS, tokens - token)):
        sums = load_first(f32x16, out, (token + t) * width + row, width - row)
        store(kept, at + t * LANES, sums)


@njit
def put(out, token, row, kept, at):
    """Sixteen tokens' outputs from kept[at:], as far as there are so many."""
    tokens, width = out.shape
    for t in range(min(ROWS, tokens - token)):
        sums = load(f32x16, kept, at + t * LANES)
        store_first(out, (token + t) * width + row, sums, width - row)


def product(fill: Callable[..., None], multiply: Callable[..., None]) -> Callable[..., None]:
    """The loops around

    - fill(source, panel, first, count, unit, depth), which lays `depth` units from `unit` on of
      `count` tokens from `first` on into the panel, [tiles of tokens][depth][16 tokens], the last
      token again where a tile has fewer;
    - multiply(state, panel, weight, out, first, count, rows, where), which adds to the outputs of
      these tokens and of the groups of rows `rows`, (begin, end). Of `where`, (unit, depth, units),
      `unit` is 0 the first time.
    """

    @njit(inline="always")
    def run(state, source, panel, weight, units, out, rows):
        tokens = out.shape[0]
        for first in range(0, tokens, TOKENS):
            count = min(TOKENS, tokens - first)
            for unit in range(0, units, UNITS):
                depth = min(UNITS, units - unit)
                fill(source, panel, first, count, unit, depth)
                multiply(state, panel, weight, out, first, count, rows, (unit, depth, units))

    return run


@njit
def fill_bytes(source, panel, first, count, unit, depth):
    (q, scale), (bytes_, scales) = source, panel[:2]
    hidden = q.shape[1]
    for token in range((count + ROWS - 1) // ROWS * ROWS):
        row = first + min(token, count - 1)
        for b in range(depth):
            at = (token // ROWS * depth + b) * ROWS + token % ROWS
            store(bytes_, at * BLOCK, load(i8x32, q, row * hidden + (unit + b) * BLOCK))
            scales[at] = scale[row, unit + b]


def lower(format: str) -> Callable[..., None]:
    """(weight, at, depth, lowered): a group's blocks as tiles of signed bytes."""
    step = LANES * (PAYLOAD[format] + 2)
    raised = np.full(ROW, RAISED[format], np.uint8)

    @njit
    def from_bytes(weight, at, depth, lowered):
        for b in range(depth):
            for c in range(8):
                w = load(i8x64, weight, at + b * step + c * ROW)
                store(lowered, (8 * b + c) * ROW, less(w, load(i8x64, raised, 0)))

    @njit
    def from_nibbles(weight, at, depth, lowered):
        for b in range(depth):
            for c in range(4):
                w = load(i8x64, weight, at + b * step + c * ROW)
                low, high = low_nibbles(w), high_nibbles(w)
                store(lowered, (8 * b + c) * ROW, less(low, load(i8x64, raised, 0)))
                store(lowered, (8 * b + c + 4) * ROW, less(high, load(i8x64, raised, 0)))

    return from_bytes if format == "Q8_0" else from_nibbles


def multiply_bytes(tag: Any, format: str) -> Callable[..., None]:
    payload, step = LANES * PAYLOAD[format], LANES * (PAYLOAD[format] + 2)
    lower_all = lower(format)

    @njit(inline="always")
    def add(sums, dots, half, weight, at, scales, where):
        w = convert(f32x16, load(f16x16, weight, at + payload))
        exact = load_rows(zeros(i32x16, ROWS), dots, half * C, LANES)
        return add_scaled(sums, exact, w, scales, where * ROWS)

    @njit
    def tile(state, q, scales, where, lowered, weight, at, depth, dots, sums):
        """16 tokens of the panel from its unit `where`, a group of rows and `depth` blocks."""
        for b in range(0, depth - 1, 2):
            tile_zero(tag, state, 0)
            tile_load(tag, state, 2, q, (where + b) * ROWS * BLOCK, BLOCK)
            tile_load(tag, state, 3, lowered, b * LANES * BLOCK, ROW)
            tile_dot_i8(tag, state, 0, 2, 3)
            tile_zero(tag, state, 1)
            tile_load(tag, state, 4, q, (where + b + 1) * ROWS * BLOCK, BLOCK)
            tile_load(tag, state, 5, lowered, (b + 1) * LANES * BLOCK, ROW)
            tile_dot_i8(tag, state, 1, 4, 5)
            tile_store(tag, state, 0, dots, 0, ROW)
            tile_store(tag, state, 1, dots, C, ROW)
            sums = add(sums, dots, 0, weight, at + b * step, scales, where + b)
            sums = add(sums, dots, 1, weight, at + (b + 1) * step, scales, where + b + 1)
        if depth % 2:
            b = depth - 1
            tile_zero(tag, state, 0)
            tile_load(tag, state, 2, q, (where + b) * ROWS * BLOCK, BLOCK)
            tile_load(tag, state, 3, lowered, b * LANES * BLOCK, ROW)
            tile_dot_i8(tag, state, 0, 2, 3)
            tile_store(tag, state, 0, dots, 0, ROW)
            sums = add(sums, dots, 0, weight, at + b * step, scales, where + b)
        return sums

    @njit
    def multiply(state, panel, weight, out, first, count, rows, where):
        (q, scales, lowered, dots, kept), (unit, depth, units) = panel, where
        for group in range(*rows):
            at = (group * units + unit) * step
            lower_all(weight, at, depth, lowered)
            for token in range(0, count, ROWS):
                sums = zeros(f32x16, ROWS)
                if unit:
                    fetch(kept, 0, out, first + token, group * LANES)
                    sums = load_rows(sums, kept, 0, LANES)
                of = token // ROWS * depth
                sums = tile(state, q, scales, of, lowered, weight, at, depth, dots, sums)
                store_rows(kept, 0, LANES, sums)
                put(out, first + token, group * LANES, kept, 0)

    return multiply


def int8_amx(tag: Any, format: str) -> Callable[..., None]:
    vectors = AVX512_VNNI if tag == AMX else GENERIC
    few = njit(int8_kernel(replace(vectors, blocking=FEW), "few", format))
    many = product(fill_bytes, multiply_bytes(tag, format))
    activations, scales = TOKENS * UNITS * BLOCK, TOKENS * UNITS
    weights, dots = LANES * UNITS * BLOCK, 2 * C

    def amx(block, thread, n_threads):
        q, scale, total, weight, out = arguments(block, INT8_SIGNATURE)
        rows = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        if out.shape[0] <= FEWEST:
            few(block, thread, n_threads)
            return
        panel = (
            stack(np.int8, activations),
            stack(np.float32, scales),
            stack(np.int8, weights),
            stack(np.int32, dots),
            stack(np.float32, C),
        )
        state = tile_state(tag)
        configure(tag, state, INT8)
        many(state, (q, scale), panel, weight, scale.shape[1], out, rows)
        release(tag, state)

    return named(amx, tag.form)


@njit
def fill_pairs(source, panel, first, count, unit, depth):
    (x,), pairs = source, panel[0]
    hidden = x.shape[1]
    for token in range((count + ROWS - 1) // ROWS * ROWS):
        row = first + min(token, count - 1)
        for k in range(depth):
            at = ((token // ROWS * depth + k) * ROWS + token % ROWS) * PADDED
            for half in range(0, PADDED, LANES):
                element = (unit + k) * PADDED + half
                v = load_first(f32x16, x, row * hidden + element, hidden - element)
                store(pairs, at + half, convert(bf16x16, v))


def multiply_pairs(tag: Any) -> Callable[..., None]:
    chunk = PADDED * LANES  # elements

    @njit
    def one(state, pairs, where, weight, at, other, depth):
        for k in range(depth):
            tile_load(tag, state, 4, pairs, (where + k) * chunk, ROW)
            tile_load(tag, state, 6, weight, at + k * 2 * chunk, ROW)
            tile_load(tag, state, 7, weight, other + k * 2 * chunk, ROW)
            tile_dot_bf16(tag, state, 0, 4, 6)
            tile_dot_bf16(tag, state, 1, 4, 7)

    @njit
    def two(state, pairs, where, weight, at, other, depth):
        for k in range(depth):
            tile_load(tag, state, 4, pairs, (where + k) * chunk, ROW)
            tile_load(tag, state, 6, weight, at + k * 2 * chunk, ROW)
            tile_load(tag, state, 7, weight, other + k * 2 * chunk, ROW)
            tile_load(tag, state, 5, pairs, (where + depth + k) * chunk, ROW)
            tile_dot_bf16(tag, state, 0, 4, 6)
            tile_dot_bf16(tag, state, 1, 4, 7)
            tile_dot_bf16(tag, state, 2, 5, 6)
            tile_dot_bf16(tag, state, 3, 5, 7)

    @njit
    def multiply(state, panel, weight, out, first, count, rows, where):
        (pairs, kept), (unit, depth, units), (begin, end) = panel, where, rows
        for group in range(begin, end, 2):
            groups = group, min(group + 1, end - 1)  # the last one twice rather than none
            at = (groups[0] * units + unit) * 2 * chunk
            other = (groups[1] * units + unit) * 2 * chunk
            for token in range(0, count, 2 * ROWS):
                if unit:
                    for c in range(4):
                        fetch(
                            kept, c * C, out, first + token + c // 2 * ROWS, groups[c % 2] * LANES
                        )
                else:
                    kept[:] = 0
                tile_load(tag, state, 0, kept, 0 * C, ROW)
                tile_load(tag, state, 1, kept, 1 * C, ROW)
                tile_load(tag, state, 2, kept, 2 * C, ROW)
                tile_load(tag, state, 3, kept, 3 * C, ROW)
                of = token // ROWS * depth
                if count - token > ROWS:
                    two(state, pairs, of, weight, at, other, depth)
                else:
                    one(state, pairs, of, weight, at, other, depth)
                tile_store(tag, state, 0, kept, 0 * C, ROW)
                tile_store(tag, state, 1, kept, 1 * C, ROW)
                tile_store(tag, state, 2, kept, 2 * C, ROW)
                tile_store(tag, state, 3, kept, 3 * C, ROW)
                for c in range(4):
                    put(out, first + token + c // 2 * ROWS, groups[c % 2] * LANES, kept, c * C)

    return multiply


def bf16_amx(tag: Any) -> Callable[..., None]:
    many = product(fill_pairs, multiply_pairs(tag))
    activations, sums = TOKENS * UNITS * PADDED, 4 * C

    def amx(block, thread, n_threads):
        x, weight, out = arguments(block, BF16_SIGNATURE)
        rows = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        panel = stack(np.uint16, activations), stack(np.float32, sums)
        state = tile_state(tag)
        configure(tag, state, FULL)
        many(state, (x,), panel, weight, (x.shape[1] + PADDED - 1) // PADDED, out, rows)
        release(tag, state)

    return named(amx, tag.form)


def int8_shares(tag: Any) -> dict[str, Share]:
    formats = {f: f for f in PAYLOAD}
    return by_format(lambda f: int8_amx(tag, f), INT8_SIGNATURE, formats)


def bf16_shares(tag: Any) -> dict[str, Share]:
    return dict.fromkeys(("F32", "F16", "BF16"), Share(bf16_amx(tag), BF16_SIGNATURE))


INT8_SHARES, INT8_EMULATED = int8_shares(AMX), int8_shares(EMULATED)
BF16_SHARES, BF16_EMULATED = bf16_shares(AMX), bf16_shares(EMULATED)
