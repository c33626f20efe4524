"""linear for Q8_0 and Q4_0 weights and int8 activations on AMX tiles: variant `amx`.

One instruction multiplies a block of sixteen tokens with that of sixteen rows of the weight, which
lies packed (linear_int8.py) as the tile it is, 8 by 64 bytes. Its bytes are lowered to signed ones,
and nibbles spread, once for all tokens of a panel. Every output is the same chain over blocks as in
linear_int8.py, so the bits are too.

By Intel's figures the product takes 16 cycles. Then its dots have to leave the tiles by way of
memory, and vectors scale them: 3 instructions for each token, 2 a cycle, so 24 cycles set the pace.
Two blocks are under way at once, for one to be scaled while the other waits for its dots. For
ALONE tokens or fewer, vectors alone are faster.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu import linear_int8
from kernels.cpu.amx import (
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
from kernels.cpu.layouts import LAYOUTS
from kernels.cpu.linear import LANES, Blocking, named
from kernels.cpu.linear_int8 import AVX512_VNNI, GENERIC, SIGNATURE
from kernels.cpu.share import Share, arguments, part
from kernels.cpu.simd import (
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
BLOCK = 32  # bytes of a token
TOKENS = 256  # of a panel: what meets weights before the next ones have to come from memory
PANEL = 512  # units of sixteen tokens: at most half a megabyte, in the second level of cache
DEEPEST = 64  # blocks of lowered weights: 32 KiB, in the first level
ALONE = 4
FORMATS = "Q8_0", "Q4_0"

# Dots, then activations and weights, of two blocks.
CONFIG = tile_config(*[(ROWS, ROW)] * 2, *[(ROWS, BLOCK), (BLOCK // 4, ROW)] * 2)
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


def product(deepest: int, fill: Any, multiply: Any) -> Any:
    """The loops around

    - fill(source, panel, first, count, unit, depth), which lays `depth` units from `unit` on, at
      most `deepest`, of `count` tokens from `first` on into the panel, [tiles][depth][16 tokens];
      the last tile is filled up with the last token;
    - multiply(state, panel, weight, out, first, count, rows, (unit, depth, units)), which adds to
      the outputs of these tokens and of the groups of rows from rows[0] to rows[1]; the first
      time, `unit` is 0.
    """

    @njit(inline="always")
    def run(state, source, panel, weight, units, out, rows):
        tokens = out.shape[0]
        for first in range(0, tokens, TOKENS):
            count = min(TOKENS, tokens - first)
            most = min(deepest, PANEL // ((count + ROWS - 1) // ROWS))
            for unit in range(0, units, most):
                depth = min(most, units - unit)
                fill(source, panel, first, count, unit, depth)
                multiply(state, panel, weight, out, first, count, rows, (unit, depth, units))

    return run


@njit
def fill(source, panel, first, count, unit, depth):
    (q, scale), (bytes_, scales) = source, panel[:2]
    hidden = q.shape[1]
    for token in range((count + ROWS - 1) // ROWS * ROWS):
        row = first + min(token, count - 1)
        for b in range(depth):
            at = (token // ROWS * depth + b) * ROWS + token % ROWS
            store(bytes_, at * BLOCK, load(i8x32, q, row * hidden + (unit + b) * BLOCK))
            scales[at] = scale[row, unit + b]


def lower(format: str) -> Any:
    """(weight, at, depth, lowered): a group's blocks as tiles of signed bytes."""
    step = LAYOUTS[format].step
    raised = np.full(ROW, LAYOUTS[format].raised, np.uint8)

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


def multiply(tag: Any, format: str) -> Any:
    payload, step = LAYOUTS[format].payload, LAYOUTS[format].step
    lower_all = lower(format)

    @njit(inline="always")
    def add(sums, dots, where, weight, at, scales, unit):
        w = convert(f32x16, load(f16x16, weight, at + payload))
        exact = load_rows(zeros(i32x16, ROWS), dots, where, LANES)
        return add_scaled(sums, exact, w, scales, unit * ROWS)

    @njit(inline="always")
    def dot(state, c, a, w, q, unit, lowered, b):
        tile_zero(tag, state, c)
        tile_load(tag, state, a, q, unit * ROWS * BLOCK, BLOCK)
        tile_load(tag, state, w, lowered, b * LANES * BLOCK, ROW)
        tile_dot_i8(tag, state, c, a, w)

    @njit
    def tile(state, q, scales, unit, lowered, weight, at, depth, dots, sums):
        """Sixteen tokens of the panel from its unit `unit` on, a group of rows, `depth` blocks."""
        for b in range(0, depth - 1, 2):
            dot(state, 0, 2, 3, q, unit + b, lowered, b)
            dot(state, 1, 4, 5, q, unit + b + 1, lowered, b + 1)
            tile_store(tag, state, 0, dots, 0, ROW)
            tile_store(tag, state, 1, dots, C, ROW)
            sums = add(sums, dots, 0, weight, at + b * step, scales, unit + b)
            sums = add(sums, dots, C, weight, at + (b + 1) * step, scales, unit + b + 1)
        if depth % 2:
            b = depth - 1
            dot(state, 0, 2, 3, q, unit + b, lowered, b)
            tile_store(tag, state, 0, dots, 0, ROW)
            sums = add(sums, dots, 0, weight, at + b * step, scales, unit + b)
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


def int8_kernel(tag: Any, format: str) -> Callable[..., None]:
    vectors = AVX512_VNNI if tag == AMX else GENERIC
    few = njit(linear_int8.int8_kernel(replace(vectors, blocking=FEW), "few", format))
    many = product(DEEPEST, fill, multiply(tag, format))
    scales, activations = PANEL * ROWS, PANEL * ROWS * BLOCK
    weights, dots = DEEPEST * LANES * BLOCK, 2 * C

    def kernel(block, thread, n_threads):
        q, scale, _total, weight, out = arguments(block, SIGNATURE)
        if out.shape[0] <= ALONE:
            few(block, thread, n_threads)
            return
        rows = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        if rows[0] == rows[1]:
            return
        panel = (
            stack(np.int8, activations),
            stack(np.float32, scales),
            stack(np.int8, weights),
            stack(np.int32, dots),
            stack(np.float32, C),
        )
        state = tile_state(tag)
        configure(tag, state, CONFIG)
        many(state, (q, scale), panel, weight, scale.shape[1], out, rows)
        release(tag, state)

    return named(kernel, tag.form)


class TileShare(Share):
    """A share that works tiles, for which its process has to ask before it runs."""

    @property
    def address(self) -> int:
        request()
        return super().address


def shares(tag: Any) -> dict[str, Share]:
    return {f: TileShare(int8_kernel(tag, f), SIGNATURE, f) for f in FORMATS}


SHARES, EMULATED_SHARES = shares(AMX), shares(EMULATED)
