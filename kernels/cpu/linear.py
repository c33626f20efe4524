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
    mul,
    splat,
    store_first,
    sub,
    zero,
)

LANES = 32
FLOAT = "x: f32[tokens hidden], weight: u8[packed] -> out: f32[tokens out]"
QUANTISED = (
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32],"
    " weight: u8[packed] -> out: f32[tokens out]"
)


@njit
def put(out, token, group, value):
    """Store a group's outputs of one token; the last group may be partial."""
    width = out.shape[1]
    first = group * LANES
    store_first(out, token * width + first, value, min(LANES, width - first))


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
            put(out, t, group, a)
            put(out, t + 1, group, b)
            put(out, t + 2, group, c)
            put(out, t + 3, group, d)
            t += 4
        while t < tokens:
            a = zero(f32x32)
            for k in range(hidden):
                w = convert(f32x32, load(kind, weight, base + k * step))
                a = fma(w, splat(f32x32, x[t, k]), a)
            put(out, t, group, a)
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

NIBBLES = Vector("u4", LANES)  # a tag: two elements a byte


def pair(kind, weight, base, j):
    """Elements j and j + 16 of a block as float vectors, 32 rows each."""
    raise NotImplementedError("known to compiled code only")


@overload(pair, inline="always")
def _pair(kind, weight, base, j):
    def of_bytes(kind, weight, base, j):
        low = load(i8x32, weight, base + LANES * j)
        high = load(i8x32, weight, base + LANES * (j + 16))
        return convert(f32x32, low), convert(f32x32, high)

    def of_nibbles(kind, weight, base, j):
        both = load(i8x32, weight, base + LANES * j)
        return convert(f32x32, low_nibbles(both)), convert(f32x32, high_nibbles(both))

    return of_nibbles if kind.instance_type == NIBBLES else of_bytes


@njit(inline="always")
def times(low, high, q, t, k, dot):
    dot = fma(low, splat(f32x32, float(q[t, k])), dot)
    return fma(high, splat(f32x32, float(q[t, k + 16])), dot)


@njit(inline="always")
def with_block(sum_, dot, w, offset, scale, total, t, i):
    """Add one block: scale of the weights * scale of the activations * (dot - offset * total)."""
    exact = sub(dot, splat(f32x32, float(offset * total[t, i])))
    return fma(mul(w, splat(f32x32, scale[t, i])), exact, sum_)


@njit
def quantised_rows(kind, payload, offset, q, scale, total, weight, out, thread, n_threads):
    """`payload` bytes of a block come before its scales; stored weights are raised by `offset`."""
    tokens, blocks = scale.shape
    step = payload + 2 * LANES
    first, last = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
    for group in range(first, last):
        t = 0
        while t + 4 <= tokens:
            a, b, c, d = zero(f32x32), zero(f32x32), zero(f32x32), zero(f32x32)
            for i in range(blocks):
                base = (group * blocks + i) * step
                dot_a, dot_b, dot_c, dot_d = zero(f32x32), zero(f32x32), zero(f32x32), zero(f32x32)
                for j in range(16):
                    low, high = pair(kind, weight, base, j)
                    k = 32 * i + j
                    dot_a = times(low, high, q, t, k, dot_a)
                    dot_b = times(low, high, q, t + 1, k, dot_b)
                    dot_c = times(low, high, q, t + 2, k, dot_c)
                    dot_d = times(low, high, q, t + 3, k, dot_d)
                w = convert(f32x32, load(f16x32, weight, base + payload))
                a = with_block(a, dot_a, w, offset, scale, total, t, i)
                b = with_block(b, dot_b, w, offset, scale, total, t + 1, i)
                c = with_block(c, dot_c, w, offset, scale, total, t + 2, i)
                d = with_block(d, dot_d, w, offset, scale, total, t + 3, i)
            put(out, t, group, a)
            put(out, t + 1, group, b)
            put(out, t + 2, group, c)
            put(out, t + 3, group, d)
            t += 4
        while t < tokens:
            a = zero(f32x32)
            for i in range(blocks):
                base = (group * blocks + i) * step
                dot_a, dot_b = zero(f32x32), zero(f32x32)
                for j in range(0, 16, 2):
                    low, high = pair(kind, weight, base, j)
                    dot_a = times(low, high, q, t, 32 * i + j, dot_a)
                    low, high = pair(kind, weight, base, j + 1)
                    dot_b = times(low, high, q, t, 32 * i + j + 1, dot_b)
                w = convert(f32x32, load(f16x32, weight, base + payload))
                a = with_block(a, add(dot_a, dot_b), w, offset, scale, total, t, i)
            put(out, t, group, a)
            t += 1


def quantised_kernel(kind: Vector) -> Callable[..., None]:
    payload, offset = (16 * LANES, 8) if kind == NIBBLES else (32 * LANES, 0)

    def generic(block, thread, n_threads):
        q, scale, total, weight, out = arguments(block, QUANTISED)
        quantised_rows(kind, payload, offset, q, scale, total, weight, out, thread, n_threads)

    return generic


QUANTISED_SHARES = by_format(quantised_kernel, QUANTISED, {"Q8_0": i8x32, "Q4_0": NIBBLES})
