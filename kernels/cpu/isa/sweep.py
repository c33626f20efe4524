"""Sixteen elements at a time over a flat range, whole or up to its end."""

from collections.abc import Callable
from typing import Any

from numba import njit

from kernels.cpu.isa.simd import f32x16, load, load_first, store, store_first
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, all_arguments, arguments, part


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


def each(signature: str) -> Callable[[Any], Share]:
    """Make a function of sixteen elements the share of an op on one or two arrays [tokens, width]:
    it takes those of each input and the scalars behind them, and gives those of the output."""
    two = sum(bool(argument.axes) for argument in all_arguments(signature)) == 3

    def made(function: Any) -> Share:
        of = inner(getattr(function, "py_func", function))

        def of_one(block, thread, n_threads):
            given = arguments(block, signature)
            x, out = given[0], given[-1]
            first, last = own_elements(x, thread, n_threads)
            for i in range(first, last, 16):
                store_some(out, i, last, of(load_some(x, i, last), *given[1:-1]))

        def of_two(block, thread, n_threads):
            given = arguments(block, signature)
            x, y, out = given[0], given[1], given[-1]
            first, last = own_elements(x, thread, n_threads)
            for i in range(first, last, 16):
                some = load_some(x, i, last), load_some(y, i, last)
                store_some(out, i, last, of(*some, *given[2:-1]))

        kernel = of_two if two else of_one
        kernel.__module__, kernel.__qualname__ = function.__module__, function.__qualname__
        return Share(lambda: kernel, signature)

    return made
