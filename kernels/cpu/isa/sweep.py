"""Sixteen elements at a time over a flat range, whole or up to its end."""

from numba import njit

from kernels.cpu.isa.simd import f32x16, load, load_first, store, store_first
from kernels.cpu.runtime.share import part


@njit(inline="always")
def own_elements(x, thread, n_threads):
    """The flat range [first, last) of this thread's tokens in x [tokens, width]."""
    tokens, width = x.shape
    first, last = part(tokens, thread, n_threads)
    return first * width, last * width


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
