"""Sixteen elements at a time over a flat range, whole or up to its end."""

from numba import njit

from kernels.cpu.simd import f32x16, load, load_first, store, store_first


@njit(inline="always")
def load_some(x, i, last):
    """f32x16 from flat element i, zero from `last` on."""
    return load(f32x16, x, i) if i + 16 <= last else load_first(f32x16, x, i, last - i)


@njit(inline="always")
def store_some(out, i, last, value):
    """f32x16 to flat element i, nothing from `last` on."""
    if i + 16 <= last:
        store(out, i, value)
    else:
        store_first(out, i, value, last - i)
