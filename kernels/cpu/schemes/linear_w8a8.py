"""linear with int8 weights and activations in groups: `avx512_vnni`, `generic` and `scalar`.

Packed layout of all but `scalar`, which reads the weight unpacked: one group of 16 rows after the
other, rows beyond `out` zero, [hidden / 4][16] words of four weights. They are offset by 128 in
registers, since vector units multiply unsigned by signed, and so are their zero points z:

    sum (x - z_x) (w - z) = sum x w - z_x (sum w - size z) - z sum x

Sums of w are products with activations that are all 1, sums of x come with the panel. Both products
and all sums are integers that may wrap around, but their result fits: a group has at most LARGEST
elements. A panel that ends inside a group leaves its sums in `scratch`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numba import njit
from numba.extending import intrinsic

from kernels.cpu.formats.layouts import BLOCK, WORD_ROWS
from kernels.cpu.isa.simd import Vector, less, load, load_first, splat
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.isa.simd_x86 import to_unsigned
from kernels.cpu.isa.tiles import add_scaled, load_tile, outer, store_tile, zeros
from kernels.cpu.linear.linear import LANES, Blocking, named, prefetcher, product
from kernels.cpu.linear.linear_blocks import spreading
from kernels.cpu.linear.linear_int8 import ByteProducts, by_bytes, by_pairs, pack_halves, pack_word
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, part, share
from reference.op import Shape
from reference.schemes.linear_w8a8 import OP

SIGNATURE = (
    "x: i8[tokens hidden], x_scale: f32[tokens groups], x_zero: i32[tokens groups],"
    " weight: u8[packed], weight_scale: f32[groups out], weight_zero: i32[groups out],"
    " scratch: f32[elements], tuning: i64[knobs] -> out: f32[tokens out]"
)
SCALAR = OP.signature
STEP = 8 * WORD_ROWS  # bytes of a block of 32 of all rows
LARGEST = (2**31 - 1) // 255**2


def fits(shape: Shape) -> bool:
    """Whether a group's sum fits 32 bits."""
    return shape["size"] <= LARGEST


def whole_blocks(shape: Shape) -> bool:
    return fits(shape) and shape["size"] % BLOCK == 0


def unfinished(shape: Shape) -> int:
    """Partial sums of a group for every output, and of weights for every tile."""
    return 2 * shape["tokens"] * shape["out"]


@intrinsic
def without_product(typing, total, a, b):
    """total - a * b, of integers."""

    def codegen(context, builder, signature, values):
        return builder.sub(values[0], builder.mul(*values[1:]))

    return a(a, a, a), codegen


less_outer = outer(without_product)


def multiply(microkernel: ByteProducts) -> Callable[[int], Any]:
    lanes, words, four = microkernel.lanes, microkernel.words, microkernel.four
    bytes_, floats, integers = (
        Vector(*kind) for kind in (("i8", 4 * lanes), ("f32", lanes), ("i32", lanes))
    )

    def of_size(size: int) -> Any:
        prefetch_next = prefetcher(size, WORD_ROWS)

        @inner
        def tile(token, arguments):
            panel, weight, at, depth, out, first, row, begin, tuning = arguments
            q, scale, point, total, ones, weight_scale, weight_zero, left, blocks = panel
            groups, width = weight_scale.shape
            unit = at // STEP % (groups * blocks)
            for lane in range(0, LANES, lanes):
                valid = min(lanes, width - row - lane)
                sums = zeros(floats, size)
                dots, weights = zeros(integers, size), zeros(integers, 1)
                if not begin:
                    sums = load_tile(sums, out, first + token, row + lane, valid)
                if unit % blocks:
                    dots = load_tile(dots, left, first + token, row + lane, valid)
                    weights = load_tile(weights, left, len(out) + first + token, row + lane, valid)
                u = 0
                while u < depth:
                    group = (unit + u) // blocks
                    end = min(depth, (group + 1) * blocks - unit)
                    for k in range(8 * u, 8 * end):
                        base = at + k * WORD_ROWS + 4 * lane
                        prefetch_next(weight, base, tuning)
                        w = to_unsigned(load(bytes_, weight, base))
                        dots = four(dots, w, q, (token * depth * 8 + k * size) * words, size)
                        weights = four(weights, w, ones, 0, 1)
                    u = end
                    if unit + u == (group + 1) * blocks:
                        where, at_row = token * depth + (u - 1) * size, group * width + row + lane
                        zero = load_first(integers, weight_zero, at_row, valid)
                        zero = less(zero, splat(integers, np.int32(-128)))
                        many = splat(integers, np.int32(blocks * BLOCK))
                        beyond = without_product(weights[0], zero, many)
                        dots = less_outer(dots, beyond, point, where)
                        dots = less_outer(dots, zero, total, where)
                        steps = load_first(floats, weight_scale, at_row, valid)
                        sums = add_scaled(sums, dots, steps, scale, where)
                        dots, weights = zeros(integers, size), zeros(integers, 1)
                if (unit + depth) % blocks:
                    store_tile(dots, left, first + token, row + lane, valid)
                    store_tile(weights, left, len(out) + first + token, row + lane, valid)
                store_tile(sums, out, first + token, row + lane, valid)

        return tile

    return of_size


def fill(microkernel: ByteProducts) -> Any:
    words, spread = microkernel.words, spreading(microkernel)

    @njit(inline="always")
    def sum_of(q):
        total = np.int32(0)
        for value in q:
            total += value
        return total

    @inner
    def fill_tile(token, size, arguments):
        source, panel, first, unit, depth = arguments
        x, word, x_scale, x_zero = source
        q, scale, point, total, _, _, _, _, blocks = panel
        target = q[token * depth * 8 * words :]
        for t in range(size):
            row = first + token + t
            for b in range(depth):
                group, after = (unit + b) // blocks, unit + b + 1
                if after == (group + 1) * blocks:
                    at = token * depth + b * size + t
                    scale[at], point[at] = x_scale[row, group], x_zero[row, group]
                    total[at] = sum_of(x[row, group * blocks * BLOCK : after * BLOCK])
            spread(word[row], 8 * unit, 8 * depth, target, size, t)

    return fill_tile


def packed_kernel(microkernel: ByteProducts, variant: str) -> Callable[..., None]:
    blocking, words = microkernel.blocking, microkernel.words
    size, panel_words = blocking.size, 8 * words * blocking.size
    one = 0x01010101 if microkernel.words == 1 else 0x00010001
    many = product(blocking, fill(microkernel), multiply(microkernel))

    def kernel(args, thread, n_threads):
        x, x_scale, x_zero, weight, weight_scale, weight_zero, scratch, tuning, out = arguments(
            args, SIGNATURE
        )
        blocks = x.shape[1] // BLOCK
        q, scale = stack(np.int32, panel_words), stack(np.float32, size)
        point, total, ones = stack(np.int32, size), stack(np.int32, size), stack(np.int32, words)
        ones[:] = one
        left = scratch.view(np.int32).reshape(2 * len(out), out.shape[1])
        per_group = blocks // x_scale.shape[1]
        panel = q, scale, point, total, ones, weight_scale, weight_zero, left, per_group
        source = x, x.view(np.int32), x_scale, x_zero
        many(source, panel, weight, STEP, blocks, out, tuning, thread, n_threads)

    return named(kernel, variant)


@share(SCALAR)
def scalar(args, thread, n_threads):
    x, x_scale, x_zero, weight, weight_scale, weight_zero, out = arguments(args, SCALAR)
    tokens, groups = x_scale.shape
    size = x.shape[1] // groups
    first, last = part(out.shape[1], thread, n_threads)
    for row in range(first, last):
        for t in range(tokens):
            total = np.float32(0)
            for g in range(groups):
                dot, zero, point = np.int32(0), x_zero[t, g], weight_zero[g, row]
                for k in range(g * size, (g + 1) * size):
                    dot += (x[t, k] - zero) * (weight[row, k] - point)
                total += x_scale[t, g] * weight_scale[g, row] * np.float32(dot)
            out[t, row] = total


AVX512_VNNI = ByteProducts(16, 1, pack_word, Blocking((12, 4, 1), 48, 64), by_bytes, by_bytes)
GENERIC = ByteProducts(8, 2, pack_halves, Blocking((6, 2, 1), 48, 64), by_pairs, by_pairs)
avx512_vnni = Share(partial(packed_kernel, AVX512_VNNI, "avx512_vnni"), SIGNATURE)
generic = Share(partial(packed_kernel, GENERIC, "generic"), SIGNATURE)
