"""linear with E4M3 or E5M2 weights and activations.

Packed layout, one group of 16 rows after the other, rows beyond `out` zero: [hidden][16] codes.
They are streamed as bytes and widened in registers like the weights of linear_float.py: unpacking
at packing time would double what a single token has to stream. Activations become float32 as the
panel is filled. Scales multiply the final sums, together with the power of two that the decoded
numbers of both sides lack (float8.py), which changes no bit.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.isa.simd import i8x16, load, store
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.isa.tiles import fma_outer
from kernels.cpu.linear.linear import LANES, chains, product
from kernels.cpu.linear.linear_float import GENERIC, single
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import arguments, by_format, part
from kernels.cpu.schemes.float8 import KINDS, decoder, factor_of, some_codes
from reference.schemes.float8 import Float8

SIGNATURE = (
    "x: u8[tokens hidden], x_scale: f32[tokens], weight: u8[packed], weight_scale: f32[out],"
    " tuning: i64[knobs] -> out: f32[tokens out]"
)


def fill(numbers: Any) -> Any:
    @inner
    def fill_tile(token, size, arguments):
        (x,), (panel,), first, unit, depth = arguments
        target, sixteen = panel[token * depth :], stack(np.float32, LANES)
        for t in range(size):
            source = x[first + token + t, unit:]
            for k in range(0, depth, LANES):
                store(sixteen, 0, numbers(some_codes(source, k, depth)))
                for j in range(min(LANES, depth - k)):
                    target[(k + j) * size + t] = sixteen[j]

    return fill_tile


@inner
def scale_own(out, x_scale, weight_scale, factor, thread, n_threads):
    """Scale the rows that `product` gave this thread."""
    begin, end = part((out.shape[1] + LANES - 1) // LANES, thread, n_threads)
    for t in range(len(out)):
        for row in range(begin * LANES, min(end * LANES, out.shape[1])):
            out[t, row] *= factor
            out[t, row] *= x_scale[t] * weight_scale[row]


def float8_kernel(kind: Float8) -> Callable[..., None]:
    size, numbers, factor = GENERIC.size, decoder(kind), factor_of(kind) ** 2
    fill_tile = fill(numbers)

    @njit(inline="always")
    def load_weights(weight, at):
        return numbers(load(i8x16, weight, at))

    one = single(load_weights, LANES)
    many = product(GENERIC, fill_tile, chains(load_weights, LANES, fma_outer))

    def generic(args, thread, n_threads):
        x, x_scale, weight, weight_scale, tuning, out = arguments(args, SIGNATURE)
        tokens, hidden = x.shape
        panel = stack(np.float32, size)
        if tokens == 1 and hidden <= size:
            fill_tile(0, 1, ((x,), (panel,), 0, 0, hidden))
            one(panel[:hidden].reshape(1, hidden), weight, out, tuning, thread, n_threads)
        else:
            many((x,), (panel,), weight, LANES, hidden, out, tuning, thread, n_threads)
        scale_own(out, x_scale, weight_scale, factor, thread, n_threads)

    return generic


SHARES = by_format(float8_kernel, SIGNATURE, KINDS)
