"""linear for F32, F16 and BF16 weights: variants `generic` and `avx512`.

Packed layout, a group of 16 rows after the other, rows beyond `out` zero: [hidden][16] elements.
A panel holds [hidden][tokens of the tile] activations.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

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
from kernels.cpu.isa.simd_shuffle import stack, transpose_first
from kernels.cpu.isa.tiles import (
    add_product,
    fma_outer,
    load_tile,
    outer_of_two,
    store_tile,
    zeros,
)
from kernels.cpu.linear.linear import (
    LANES,
    Blocking,
    chains,
    named,
    prefetch_outputs,
    prefetcher,
    product,
    two_at_once,
)
from kernels.cpu.runtime.closures import inlined, inner
from kernels.cpu.runtime.share import arguments, by_format, part

fma_outer_of_two = outer_of_two(add_product)
SIGNATURE = "x: f32[tokens hidden], weight: u8[packed], tuning: i64[knobs] -> out: f32[tokens out]"


@inner
def fill(token, size, arguments):
    (x,), (panel,), first, unit, depth = arguments
    target, hidden, done = panel[token * depth :], x.shape[1], 0
    if size >= LANES // 2:  # no vector is stored beyond the last column then
        done = (depth - 1) // LANES * LANES
        for k in range(0, done, LANES):
            transpose_first(x, (first + token) * hidden + unit + k, hidden, size, target, size * k)
    for t in range(size):
        source = x[first + token + t, unit:]
        for k in range(done, depth):
            target[k * size + t] = source[k]


def widened(kind: Vector) -> Any:
    @inlined
    def load_weights(weight, at):
        return convert(f32x16, load(kind, weight, at))

    return load_weights


def pairs(load_weights: Any, step: int) -> Callable[[int], Any]:
    """`linear.chains` for two groups at a time: each broadcast element of activations is used for
    both, since loads would be the bottleneck before multiplications."""
    every = max(1, CACHE_LINE // step)  # elements of a group in a line of the cache

    def of_size(size: int) -> Any:
        prefetch_next = prefetcher(size, CACHE_LINE)

        @inner
        def tile(token, arguments):
            (panel,), weight, places, depth, out, first, rows, begin, tuning = arguments
            (at, beside), (row, row_beside), width = places, rows, out.shape[1]
            a, b = zeros(f32x16, size), zeros(f32x16, size)
            if not begin:
                a = load_tile(a, out, first + token, row, min(LANES, width - row))
                b = load_tile(b, out, first + token, row_beside, min(LANES, width - row_beside))
            prefetch_outputs(out, first + token + size, size, row)
            prefetch_outputs(out, first + token + size, size, row_beside)
            for k in range(depth):
                if k % every == 0:
                    prefetch_next(weight, at + k * step, tuning)
                    prefetch_next(weight, beside + k * step, tuning)
                v = load_weights(weight, at + k * step)
                w = load_weights(weight, beside + k * step)
                a, b = fma_outer_of_two(a, b, v, w, panel, token * depth + k * size)
            store_tile(a, out, first + token, row, min(LANES, width - row))
            store_tile(b, out, first + token, row_beside, min(LANES, width - row_beside))

        return tile

    return of_size


def single(load_weights: Any, step: int) -> Any:
    """One token: two groups of rows at once, since a chain of additions waits for each to end. From
    memory two long streams of weights are often faster than one."""

    every = max(1, CACHE_LINE // step)  # elements of a group in a line of the cache
    prefetch_next = prefetcher(1, CACHE_LINE)

    @inner
    def run(x, weight, out, tuning, thread, n_threads):
        hidden, width = x.shape[1], out.shape[1]
        begin, end = part((width + LANES - 1) // LANES, thread, n_threads)
        times, step_of_two, apart = two_at_once(begin, end, tuning)
        for i in range(times):
            group = begin + i * step_of_two
            other = min(group + apart, end - 1)
            at, beside = group * hidden * step, other * hidden * step
            a, b = zero(f32x16), zero(f32x16)
            for k in range(hidden):
                if k % every == 0:
                    prefetch_next(weight, at + k * step, tuning)
                    prefetch_next(weight, beside + k * step, tuning)
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
    if blocking.groups == 2:
        multiply = pairs(load_weights, step)
    else:
        multiply = chains(load_weights, step, fma_outer)
    many = product(blocking, fill, multiply)

    def kernel(args, thread, n_threads):
        x, weight, tuning, out = arguments(args, SIGNATURE)
        if x.shape[0] == 1:
            one(x, weight, out, tuning, thread, n_threads)
            return
        panel = stack(np.float32, size)
        many((x,), (panel,), weight, step, x.shape[1], out, tuning, thread, n_threads)

    return named(kernel, variant)


KINDS = {"F32": f32x16, "F16": f16x16, "BF16": bf16x16}
GENERIC = Blocking((6, 4, 2, 1), tokens=96, units=512)
AVX512 = Blocking((12, 8, 4, 2, 1), tokens=48, units=2048, groups=2)

GENERIC_SHARES = by_format(partial(float_kernel, GENERIC, "generic"), SIGNATURE, KINDS)
AVX512_SHARES = by_format(partial(float_kernel, AVX512, "avx512"), SIGNATURE, KINDS)
