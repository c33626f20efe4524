"""linear on the CPU in portable vectors: variant `generic`.

32 rows travel together, one row a lane. Every output is one chain of fused multiply-adds over
hidden in order (block by block for quantised weights), so neither the number of threads nor that
of tokens changes a bit. Tokens go four at a time, so that a weight is loaded and widened once for
four; groups of rows are shared among threads.

Packed layouts, a group of 32 rows after the other, rows beyond `out` zero:
- F32, F16, BF16: [hidden][32 lanes] elements.
- Q8_0: [blocks] of [32 elements][32 lanes] int8, then 32 float16 scales.
- Q4_0: [blocks] of [16 bytes][32 lanes], low nibbles element j, high ones j + 16, then 32 scales.
"""

from collections.abc import Callable

from numba import njit
from numba.extending import overload

from kernels.cpu.linear_blocks import QUANTISED, Layout, put, rows, sums1, sums4
from kernels.cpu.share import arguments, by_format, part
from kernels.cpu.simd import (
    Vector,
    add,
    bf16x32,
    convert,
    f16x32,
    f32x32,
    fma,
    high_nibbles,
    i8x32,
    load,
    low_nibbles,
    splat,
    sub,
    zero,
)

LANES = 32
FLOAT = "x: f32[tokens hidden], weight: u8[packed] -> out: f32[tokens out]"


@njit
def float_rows(kind, element_bytes, x, weight, out, thread, n_threads):
    tokens, hidden = x.shape
    step = LANES * element_bytes
    first, last = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
    for group in range(first, last):
        base = group * hidden * step
        t = 0
        while t + 4 <= tokens:
            a, b, c, d = zero(f32x32), zero(f32x32), zero(f32x32), zero(f32x32)
            for k in range(hidden):
                w = convert(f32x32, load(kind, weight, base + k * step))
                a = fma(w, splat(f32x32, x[t, k]), a)
                b = fma(w, splat(f32x32, x[t + 1, k]), b)
                c = fma(w, splat(f32x32, x[t + 2, k]), c)
                d = fma(w, splat(f32x32, x[t + 3, k]), d)
            put(out, t, group * LANES, LANES, a)
            put(out, t + 1, group * LANES, LANES, b)
            put(out, t + 2, group * LANES, LANES, c)
            put(out, t + 3, group * LANES, LANES, d)
            t += 4
        while t < tokens:
            a = zero(f32x32)
            for k in range(hidden):
                w = convert(f32x32, load(kind, weight, base + k * step))
                a = fma(w, splat(f32x32, x[t, k]), a)
            put(out, t, group * LANES, LANES, a)
            t += 1


def float_kernel(kind: Vector) -> Callable[..., None]:
    element_bytes = 4 if kind == f32x32 else 2

    def generic(block, thread, n_threads):
        x, weight, out = arguments(block, FLOAT)
        float_rows(kind, element_bytes, x, weight, out, thread, n_threads)

    return generic


FLOAT_SHARES = by_format(float_kernel, FLOAT, {"F32": f32x32, "F16": f16x32, "BF16": bf16x32})


# A block's integer dot is at most 32 * 127 * 128 < 2^24, so float32 holds it exactly and the
# portable int8-to-float conversion serves every machine, in any order.

BYTES, NIBBLES = Layout("generic", "Q8_0"), Layout("generic", "Q4_0")


def pair(layout, weight, base, j):
    """Elements j and j + 16 of a block as float vectors, 32 rows each."""
    raise NotImplementedError("known to compiled code only")


@overload(pair, inline="always")
def _pair(layout, weight, base, j):
    def of_bytes(layout, weight, base, j):
        low = load(i8x32, weight, base + LANES * j)
        high = load(i8x32, weight, base + LANES * (j + 16))
        return convert(f32x32, low), convert(f32x32, high)

    def of_nibbles(layout, weight, base, j):
        both = load(i8x32, weight, base + LANES * j)
        eight = splat(f32x32, 8.0)
        low, high = convert(f32x32, low_nibbles(both)), convert(f32x32, high_nibbles(both))
        return sub(low, eight), sub(high, eight)

    return of_nibbles if layout.instance_type == NIBBLES else of_bytes


@njit(inline="always")
def times(low, high, q, t, k, dot):
    dot = fma(low, splat(f32x32, float(q[t, k])), dot)
    return fma(high, splat(f32x32, float(q[t, k + 16])), dot)


@overload(sums1)
def _sums1(layout, weight, base, q, total, t, i):
    def one(layout, weight, base, q, total, t, i):
        a, b = zero(f32x32), zero(f32x32)  # two chains, so that their latencies overlap
        for j in range(0, 16, 2):
            low, high = pair(layout, weight, base, j)
            a = times(low, high, q, t, 32 * i + j, a)
            low, high = pair(layout, weight, base, j + 1)
            b = times(low, high, q, t, 32 * i + j + 1, b)
        return add(a, b)

    return one if layout.instance_type in (BYTES, NIBBLES) else None


@overload(sums4)
def _sums4(layout, weight, base, q, total, t, i):
    def four(layout, weight, base, q, total, t, i):
        a, b, c, d = zero(f32x32), zero(f32x32), zero(f32x32), zero(f32x32)
        for j in range(16):
            low, high = pair(layout, weight, base, j)
            k = 32 * i + j
            a = times(low, high, q, t, k, a)
            b = times(low, high, q, t + 1, k, b)
            c = times(low, high, q, t + 2, k, c)
            d = times(low, high, q, t + 3, k, d)
        return a, b, c, d

    return four if layout.instance_type in (BYTES, NIBBLES) else None


def block_kernel(layout: Layout) -> Callable[..., None]:
    payload = LANES * (32 if layout == BYTES else 16)

    def generic(block, thread, n_threads):
        values = arguments(block, QUANTISED)
        rows(layout, f32x32, f16x32, LANES, payload, values, thread, n_threads)

    return generic


QUANTISED_SHARES = by_format(block_kernel, QUANTISED, {"Q8_0": BYTES, "Q4_0": NIBBLES})
