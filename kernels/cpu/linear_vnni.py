"""linear for Q8_0 and Q4_0 by 8-bit dot products of AVX-512: variant `avx512_vnni`.

Sixteen rows travel together. `vpdpbusd` takes four elements of each row at once and multiplies
unsigned by signed bytes, so weights are raised to unsigned (by 128 or, as nibbles are stored, by 8)
and the activations' total takes it off again.

Packed layout, a group of 16 rows after the other: [blocks] of [payload / 4][16 lanes][4 bytes],
then 16 float16 scales.
"""

from collections.abc import Callable

from numba import njit
from numba.extending import overload

from kernels.cpu.linear_blocks import QUANTISED, Layout, rows, sums1, sums4
from kernels.cpu.share import arguments, by_format
from kernels.cpu.simd import (
    convert,
    f16x16,
    f32x16,
    high_nibbles,
    i8x64,
    i32x16,
    less,
    load,
    low_nibbles,
    splat,
    zero,
)
from kernels.cpu.simd_x86 import dot4, splat4, to_unsigned

LANES = 16
BYTES, NIBBLES = Layout("avx512_vnni", "Q8_0"), Layout("avx512_vnni", "Q4_0")


@njit(inline="always")
def without(sums, raised, total):
    """The exact dots, once what the weights were raised by is taken off."""
    return convert(f32x16, less(sums, splat(i32x16, raised * total)))


@overload(sums1)
def _sums1(layout, weight, base, q, total, t, i):
    def of_bytes(layout, weight, base, q, total, t, i):
        sums = zero(i32x16)
        x = t * q.shape[1] + 32 * i
        for c in range(8):
            w = to_unsigned(load(i8x64, weight, base + 64 * c))
            sums = dot4(sums, w, splat4(q, x + 4 * c))
        return without(sums, 128, total[t, i])

    def of_nibbles(layout, weight, base, q, total, t, i):
        sums = zero(i32x16)
        x = t * q.shape[1] + 32 * i
        for c in range(4):
            w = load(i8x64, weight, base + 64 * c)
            sums = dot4(sums, low_nibbles(w), splat4(q, x + 4 * c))
            sums = dot4(sums, high_nibbles(w), splat4(q, x + 4 * c + 16))
        return without(sums, 8, total[t, i])

    return {BYTES: of_bytes, NIBBLES: of_nibbles}.get(layout.instance_type)


@overload(sums4)
def _sums4(layout, weight, base, q, total, t, i):
    def of_each(layout, weight, base, q, total, t, i):  # LLVM loads a weight once for all four
        return (
            sums1(layout, weight, base, q, total, t, i),
            sums1(layout, weight, base, q, total, t + 1, i),
            sums1(layout, weight, base, q, total, t + 2, i),
            sums1(layout, weight, base, q, total, t + 3, i),
        )

    return of_each if layout.instance_type in (BYTES, NIBBLES) else None


def vnni_kernel(layout: Layout) -> Callable[..., None]:
    payload = LANES * (32 if layout == BYTES else 16)

    def avx512_vnni(block, thread, n_threads):
        values = arguments(block, QUANTISED)
        rows(layout, f32x16, f16x16, LANES, payload, values, thread, n_threads)

    return avx512_vnni


SHARES = by_format(vnni_kernel, QUANTISED, {"Q8_0": BYTES, "Q4_0": NIBBLES})
