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
    """Store f32x16 at flat element i, up to `last`."""
    if i + 16 <= last:
        store(out, i, value)
    else:
        store_first(out, i, value, last - i)


def each(signature: str) -> Callable[[Any], Share]:
    """Turn a function of sixteen elements into the share of an op on one or two arrays [tokens,
    width]: it takes each input's elements and then the scalars, and returns the output's."""
    two = sum(bool(argument.axes) for argument in all_arguments(signature)) == 3

    def made(function: Any) -> Share:
        of = inner(getattr(function, "py_func", function), forceinline=True)

        def of_one(args, thread, n_threads):
            given = arguments(args, signature)
            x, out = given[0], given[-1]
            first, last = own_elements(x, thread, n_threads)
            for i in range(first, last, 16):
                store_some(out, i, last, of(load_some(x, i, last), *given[1:-1]))

        def of_two(args, thread, n_threads):
            given = arguments(args, signature)
            x, y, out = given[0], given[1], given[-1]
            first, last = own_elements(x, thread, n_threads)
            for i in range(first, last, 16):
                some = load_some(x, i, last), load_some(y, i, last)
                store_some(out, i, last, of(*some, *given[2:-1]))

        kernel = _known_as(function, of_two if two else of_one)
        return Share(lambda: kernel, signature)

    return made


def over_rows(signature: str, function: Any, at: int = 0) -> Callable[..., None]:
    """A share that calls a function with each row index of the argument at this position, split
    among threads, and with all arguments."""
    of = inner(function, forceinline=True)

    def rows(args, thread, n_threads):
        given = arguments(args, signature)
        first, last = part(len(given[at]), thread, n_threads)
        for row in range(first, last):
            of(row, *given)

    return _known_as(function, rows)


def each_row(signature: str, at: int = 0) -> Callable[[Callable[..., None]], Share]:
    """Turn a function of a row index and of all arguments into the share of an op."""
    return lambda function: Share(lambda: over_rows(signature, function, at), signature)


def alone(signature: str) -> Callable[[Callable[..., None]], Share]:
    """Turn a function of all arguments into the share of an op that one thread runs; the others
    return at once."""

    def made(function: Callable[..., None]) -> Share:
        of = inner(function, forceinline=True)

        def first(args, thread, n_threads):
            if thread == 0:
                of(*arguments(args, signature))

        kernel = _known_as(function, first)
        return Share(lambda: kernel, signature)

    return made


def _known_as(function: Any, kernel: Callable[..., None]) -> Callable[..., None]:
    """Give the kernel the function's name and module."""
    kernel.__module__, kernel.__qualname__ = function.__module__, function.__qualname__
    return kernel
