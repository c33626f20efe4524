"""linear for F32, F16 and BF16 weights: variants `generic` and `avx512`.

Packed layout, a group of 16 rows after the other, rows beyond `out` zero: [hidden][16] elements.
A panel holds [hidden][tokens of the tile] activations.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.isa.simd import (
    CACHE_LINE,
    Vector,
    bf16x16,
    convert,
    f16x16,
    f32x16,
    fma,
    load,
    splat,
    store_first,
    zero,
)
from kernels.cpu.isa.simd_shuffle import stack, transpose
from kernels.cpu.isa.tiles import fma_outer
from kernels.cpu.linear.linear import LANES, Blocking, asking, chains, named, product
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import arguments, by_format, part

SIGNATURE = "x: f32[tokens hidden], weight: u8[packed], tuning: i64[knobs] -> out: f32[tokens out]"


@inner
def fill(token, size, arguments):
    (x,), (panel,), first, unit, depth = arguments
    target, hidden, done = panel[token * depth :], x.shape[1], 0
    if size == LANES:
        done = depth // LANES * LANES
        for k in range(0, done, LANES):
            transpose(x, (first + token) * hidden + unit + k, hidden, target, LANES * k)
    for t in range(size):
        source = x[first + token + t, unit:]
        for k in range(done, depth):
            target[k * size + t] = source[k]


def widened(kind: Vector) -> Any:
    @njit(inline="always")
    def load_weights(weight, at):
        return convert(f32x16, load(kind, weight, at))

    return load_weights


def single(load_weights: Any, step: int) -> Any:
    """One token: two groups of rows at once, since a chain of additions waits for each to end. They
    are of the two halves of a thread's groups: two long streams of weights come faster from memory
    than short ones by turns."""

    every = max(1, CACHE_LINE // step)  # elements of a group in a line of the cache
    ask = asking(1, CACHE_LINE)

    @inner
    def run(x, weight, out, tuning, thread, n_threads):
        hidden, width = x.shape[1], out.shape[1]
        begin, end = part((width + LANES - 1) // LANES, thread, n_threads)
        middle = begin + (end - begin + 1) // 2
        for group in range(begin, middle):
            other = min(middle + group - begin, end - 1)
            at, beside = group * hidden * step, other * hidden * step
            a, b = zero(f32x16), zero(f32x16)
            for k in range(hidden):
                if k % every == 0:
                    ask(weight, at + k * step, tuning)
                    ask(weight, beside + k * step, tuning)
                scalar = splat(f32x16, x[0, k])
                a = fma(load_weights(weight, at + k * step), scalar, a)
                b = fma(load_weights(weight, beside + k * step), scalar, b)
            store_first(out, group * LANES, a, min(LANES, width - group * LANES))
            store_first(out, other * LANES, b, min(LANES, width - other * LANES))

    return run


def float_kernel(blocking: Blocking, variant: str, kind: Vector) -> Callable[..., None]:
    size, step = blocking.size, LANES * kind.bits // kind.lanes // 8
    load_weights = widened(kind)
    one = single(load_weights, step)
    many = product(blocking, fill, chains(load_weights, step, fma_outer))

    def kernel(block, thread, n_threads):
        x, weight, tuning, out = arguments(block, SIGNATURE)
        if x.shape[0] == 1:
            one(x, weight, out, tuning, thread, n_threads)
            return
        panel = stack(np.float32, size)
        many((x,), (panel,), weight, step, x.shape[1], out, tuning, thread, n_threads)

    return named(kernel, variant)


KINDS = {"F32": f32x16, "F16": f16x16, "BF16": bf16x16}
GENERIC = Blocking((6, 4, 2, 1), tokens=48, units=1024)
AVX512 = Blocking((16, 8, 4, 2, 1), tokens=64, units=1024)

GENERIC_SHARES = by_format(partial(float_kernel, GENERIC, "generic"), SIGNATURE, KINDS)
AVX512_SHARES = by_format(partial(float_kernel, AVX512, "avx512"), SIGNATURE, KINDS)
