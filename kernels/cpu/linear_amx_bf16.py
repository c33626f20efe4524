"""linear for F32, F16 and BF16 weights by products of bfloat16 pairs on AMX tiles: variant `amx`.

Weights and activations are rounded to bfloat16, as in linear_bf16.py, whose packed layout this is:
32 elements of sixteen rows are a tile as they lie, 16 by 64 bytes. Sums stay in tiles, two of
tokens by two of rows. Every output is one chain over 32 elements at a time, however many tokens
there are: a token alone takes a tile too, since there memory sets the pace.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kernels.cpu.amx import (
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
from kernels.cpu.closures import inner
from kernels.cpu.linear import LANES, asking, named
from kernels.cpu.linear_amx import ROW, ROWS, C, TileShare, fetch, product, put
from kernels.cpu.linear_bf16 import PADDED, SIGNATURE
from kernels.cpu.share import Share, arguments, part
from kernels.cpu.simd import bf16x16, convert, f32x16, load_first, store
from kernels.cpu.simd_shuffle import stack


@inner
def fill(source, panel, first, count, unit, depth):
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


PANEL = 1024  # units of PADDED elements of sixteen tokens: a megabyte


def multiply(tag: Any) -> Any:
    chunk = PADDED * LANES  # elements
    ask = asking(1, 2 * chunk)

    @inner
    def one(state, pairs, where, weight, at, other, depth, tuning):
        for k in range(depth):
            ask(weight, at + k * 2 * chunk, tuning)
            ask(weight, other + k * 2 * chunk, tuning)
            tile_load(tag, state, 4, pairs, (where + k) * chunk, ROW)
            tile_load(tag, state, 6, weight, at + k * 2 * chunk, ROW)
            tile_load(tag, state, 7, weight, other + k * 2 * chunk, ROW)
            tile_dot_bf16(tag, state, 0, 4, 6)
            tile_dot_bf16(tag, state, 1, 4, 7)

    @inner
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

    @inner
    def multiply(state, panel, weight, out, first, count, rows, where):
        (pairs, kept, tuning), (unit, depth, units), (begin, end) = panel, where, rows
        for group in range(begin, end, 2):
            groups = group, min(group + 1, end - 1)  # the last one twice rather than none
            at = (groups[0] * units + unit) * 2 * chunk
            other = (groups[1] * units + unit) * 2 * chunk
            for token in range(0, count, 2 * ROWS):
                if unit:
                    for c in range(4):
                        row = groups[c % 2] * LANES
                        fetch(kept, c * C, out, first + token + c // 2 * ROWS, row)
                    tile_load(tag, state, 0, kept, 0 * C, ROW)
                    tile_load(tag, state, 1, kept, 1 * C, ROW)
                    tile_load(tag, state, 2, kept, 2 * C, ROW)
                    tile_load(tag, state, 3, kept, 3 * C, ROW)
                else:
                    tile_zero(tag, state, 0)
                    tile_zero(tag, state, 1)
                    tile_zero(tag, state, 2)
                    tile_zero(tag, state, 3)
                of = token // ROWS * depth
                if count - token > ROWS:
                    two(state, pairs, of, weight, at, other, depth)
                else:
                    one(state, pairs, of, weight, at, other, depth, tuning)
                tile_store(tag, state, 0, kept, 0 * C, ROW)
                tile_store(tag, state, 1, kept, 1 * C, ROW)
                tile_store(tag, state, 2, kept, 2 * C, ROW)
                tile_store(tag, state, 3, kept, 3 * C, ROW)
                for c in range(4):
                    put(out, first + token + c // 2 * ROWS, groups[c % 2] * LANES, kept, c * C)

    return multiply


def bf16_kernel(tag: Any) -> Callable[..., None]:
    many = product(PANEL, PANEL, 1, fill, multiply(tag))
    activations, sums = PANEL * ROWS * PADDED, 4 * C

    def kernel(block, thread, n_threads):
        x, weight, tuning, out = arguments(block, SIGNATURE)
        rows = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
        if rows[0] == rows[1]:
            return
        panel = stack(np.uint16, activations), stack(np.float32, sums), tuning
        state = tile_state(tag)
        configure(tag, state, FULL)
        many(state, (x,), panel, weight, (x.shape[1] + PADDED - 1) // PADDED, out, rows)
        release(tag, state)

    return named(kernel, tag.form)


def shares(tag: Any) -> dict[str, Share]:
    return dict.fromkeys(("F32", "F16", "BF16"), TileShare(partial(bf16_kernel, tag), SIGNATURE))


SHARES, EMULATED_SHARES = shares(AMX), shares(EMULATED)
