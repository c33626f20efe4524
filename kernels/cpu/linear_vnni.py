"""linear for Q8_0 and Q4_0 by 8-bit dot products of AVX-512: variant `avx512_vnni`.

Sixteen rows travel together, one row a lane; `vpdpbusd` takes four elements of each row at once.
It multiplies unsigned by signed bytes, so weights are raised to unsigned (by 128 or, as nibbles
are stored, by 8) and the activations' total takes it off again. Integer dots are exact and blocks
are added in order, as in the generic variant: the results are the same bit for bit.

Packed layout, a group of 16 rows after the other: [blocks] of [payload / 4][16 lanes][4 bytes],
then 16 float16 scales.
"""

from collections.abc import Callable

from numba import njit
from numba.extending import overload

from kernels.cpu.linear import NIBBLES, QUANTISED
from kernels.cpu.share import arguments, by_format, part
from kernels.cpu.simd import (
    Vector,
    convert,
    dot4,
    f16x16,
    f32x16,
    fma,
    high_nibbles,
    i8x64,
    i32x16,
    less,
    load,
    low_nibbles,
    mul,
    splat,
    splat4,
    store_first,
    to_unsigned,
    zero,
)

LANES = 16


def dots(kind, weight, base, q, t, k):
    """A block's dots of 16 rows with one token: i32x16 of the raised weights."""
    raise NotImplementedError("known to compiled code only")


@overload(dots)
def _dots(kind, weight, base, q, t, k):
    def of_bytes(kind, weight, base, q, t, k):
        sums = zero(i32x16)
        for c in range(8):
            w = to_unsigned(load(i8x64, weight, base + 64 * c))
            sums = dot4(sums, w, splat4(q, t * q.shape[1] + k + 4 * c))
        return sums

    def of_nibbles(kind, weight, base, q, t, k):
        sums = zero(i32x16)
        for c in range(4):
            w = load(i8x64, weight, base + 64 * c)
            x = t * q.shape[1] + k + 4 * c
            sums = dot4(sums, low_nibbles(w), splat4(q, x))
            sums = dot4(sums, high_nibbles(w), splat4(q, x + 16))
        return sums

    return of_nibbles if kind.instance_type == NIBBLES else of_bytes


@njit(inline="always")
def with_block(sum_, sums, w, offset, scale, total, t, i):
    """Add one block: scale of the weights * scale of the activations * (dot - offset * total)."""
    exact = convert(f32x16, less(sums, splat(i32x16, offset * total[t, i])))
    return fma(mul(w, splat(f32x16, scale[t, i])), exact, sum_)


@njit
def put(out, token, group, value):
    width = out.shape[1]
    first = group * LANES
    store_first(out, token * width + first, value, min(LANES, width - first))


@njit
def rows(kind, payload, offset, q, scale, total, weight, out, thread, n_threads):
    tokens, blocks = scale.shape
    step = payload + 2 * LANES
    first, last = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
    for group in range(first, last):
        t = 0
        while t + 4 <= tokens:
            a, b, c, d = zero(f32x16), zero(f32x16), zero(f32x16), zero(f32x16)
            for i in range(blocks):
                base = (group * blocks + i) * step
                w = convert(f32x16, load(f16x16, weight, base + payload))
                k = 32 * i
                dot_a, dot_b = (
                    dots(kind, weight, base, q, t, k),
                    dots(kind, weight, base, q, t + 1, k),
                )
                dot_c = dots(kind, weight, base, q, t + 2, k)
                dot_d = dots(kind, weight, base, q, t + 3, k)
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
            a = zero(f32x16)
            for i in range(blocks):
                base = (group * blocks + i) * step
                w = convert(f32x16, load(f16x16, weight, base + payload))
                a = with_block(
                    a, dots(kind, weight, base, q, t, 32 * i), w, offset, scale, total, t, i
                )
            put(out, t, group, a)
            t += 1


def vnni_kernel(kind: Vector) -> Callable[..., None]:
    payload, offset = (16 * LANES, 8) if kind == NIBBLES else (32 * LANES, 128)

    def avx512_vnni(block, thread, n_threads):
        q, scale, total, weight, out = arguments(block, QUANTISED)
        rows(kind, payload, offset, q, scale, total, weight, out, thread, n_threads)

    return avx512_vnni


SHARES = by_format(vnni_kernel, QUANTISED, {"Q8_0": i8x64, "Q4_0": NIBBLES})
