"""What AMX tile instructions do, in portable code: kernels written for tiles run on any machine.

The state is STATE_BYTES of a uint8 array: eight tiles of 16 rows of 64 bytes, then the 64 bytes of
the configuration. Where the hardware would fault (a tile that is not configured, shapes that do
not fit, anything after release) the configuration is lost: nothing is computed or stored from
there on, so an output keeps what was in it before, and a judge sees it.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, the operation of
each instruction named below.
"""

import math

import numpy as np

from kernels.cpu.isa.simd import bf16x1, convert, extract, f32x1, load
from kernels.cpu.runtime.closures import inner

TILE, ROW = 1024, 64
CONFIG = 8 * TILE
STATE_BYTES = CONFIG + 64
PALETTE, ROW_BYTES, ROWS = CONFIG, CONFIG + 16, CONFIG + 48  # their offsets in the configuration
SMALLEST = np.float32(2.0**-126)


@inner
def clear(state, first, last):
    for i in range(first, last):
        state[i] = 0


@inner
def configure(state, config):
    """LDTILECFG: takes the 64 bytes of `config` and clears every tile."""
    clear(state, 0, CONFIG)
    for i in range(64):
        state[CONFIG + i] = config[i]
        reserved = 1 <= i < 16 or 32 <= i < 48 or i >= 56
        if reserved and config[i]:
            state[PALETTE] = 0
    for t in range(8):
        rows, row_bytes = state[ROWS + t], state[ROW_BYTES + 2 * t]
        too_large = rows > 16 or row_bytes > ROW or state[ROW_BYTES + 2 * t + 1]
        if too_large or (rows == 0) != (row_bytes == 0):
            state[PALETTE] = 0


@inner
def release(state):
    """TILERELEASE."""
    clear(state, 0, STATE_BYTES)


@inner
def shape(state, t):
    """Rows of tile t and bytes of a row; (0, 0), and the configuration lost, if it has none."""
    rows = np.int64(state[ROWS + t]) if state[PALETTE] == 1 else 0
    if rows == 0:
        state[PALETTE] = 0
        return 0, 0
    return rows, np.int64(state[ROW_BYTES + 2 * t])


@inner
def zero(state, t):
    """TILEZERO."""
    if shape(state, t)[0]:
        clear(state, t * TILE, (t + 1) * TILE)


@inner
def load_rows(state, t, source, stride):
    """TILELOADD: the tile's rows, `stride` bytes apart; the rest of the tile becomes zero."""
    rows, row_bytes = shape(state, t)
    zero(state, t)
    for r in range(rows):
        for i in range(row_bytes):
            state[t * TILE + r * ROW + i] = source[r * stride + i]


@inner
def store_rows(state, t, target, stride):
    """TILESTORED: the tile's rows, `stride` bytes apart."""
    rows, row_bytes = shape(state, t)
    for r in range(rows):
        for i in range(row_bytes):
            target[r * stride + i] = state[t * TILE + r * ROW + i]


@inner
def product_shape(state, c, a, b):
    """(rows, columns, depth) of c += a b in elements of four bytes; zeros if they do not match."""
    (m, n), (a_rows, a_bytes), (depth, b_bytes) = shape(state, c), shape(state, a), shape(state, b)
    if m != a_rows or n != b_bytes or a_bytes != 4 * depth or n % 4:
        state[PALETTE] = 0
    if state[PALETTE] != 1:
        return 0, 0, 0
    return m, n // 4, depth


@inner
def add_products(state, c, a, b, left, right):
    """c += a b over groups of four bytes, in int32 that wraps around."""
    rows, columns, depth = product_shape(state, c, a, b)
    sums = state[:CONFIG].view(np.int32)
    for m in range(rows):
        for k in range(depth):
            x = a * TILE + m * ROW + 4 * k
            for n in range(columns):
                y = b * TILE + k * ROW + 4 * n
                total = np.int32(0)
                for i in range(4):
                    total += np.int32(left[x + i]) * np.int32(right[y + i])
                sums[(c * TILE + m * ROW) // 4 + n] += total


@inner
def dot_i8(state, c, a, b):
    """TDPBSSD: signed times signed bytes."""
    signed = state[:CONFIG].view(np.int8)
    add_products(state, c, a, b, signed, signed)


@inner
def dot_u8_i8(state, c, a, b):
    """TDPBUSD: a's bytes are unsigned, b's signed."""
    add_products(state, c, a, b, state[:CONFIG], state[:CONFIG].view(np.int8))


@inner
def flush(x):
    """Flush a subnormal number to zero of its sign."""
    return x if not abs(x) < SMALLEST else np.float32(math.copysign(0.0, x))


@inner
def wide(state, offset):
    """The bfloat16 at a byte offset, as float32."""
    return np.float64(flush(extract(convert(f32x1, load(bf16x1, state, offset)), 0)))


@inner
def dot_bf16(state, c, a, b):
    """TDPBF16PS: c + (even + odd), each a chain of fused multiply-adds over the pairs' elements.

    Round to nearest even at every step, subnormal numbers taken and given as zero. A product of
    two bfloat16 is exact in float64 and its sum with a float32 rounds to float32 as if at once.

    Known from the manual alone, not from a chip: Intel's intrinsics guide writes one chain that
    starts from c instead. Unknown: a NaN's payload, and whether a result that only rounding lifts
    to the smallest normal number is flushed (here it is not).
    """
    rows, columns, depth = product_shape(state, c, a, b)
    sums = state[:CONFIG].view(np.float32)
    for m in range(rows):
        for n in range(columns):
            even, odd = np.float32(0), np.float32(0)
            for k in range(depth):
                x, y = a * TILE + m * ROW + 4 * k, b * TILE + k * ROW + 4 * n
                even = flush(np.float32(wide(state, x) * wide(state, y) + even))
                odd = flush(np.float32(wide(state, x + 2) * wide(state, y + 2) + odd))
            at = (c * TILE + m * ROW) // 4 + n
            sums[at] = flush(flush(sums[at]) + flush(even + odd))
