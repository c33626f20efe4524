"""linear for F32, F16 and BF16 weights by matrix products of bfloat16 in NEON: variant `neon_bf16`.

Weights and activations are rounded to bfloat16, so this serves only where `numerics="fast"` asks
for it. bfmmla adds four products to each of four float32 sums, of two tokens by two rows; sums stay
as it has them until they are stored. A single token stands beside itself, so that its bits are
those that it has among others.

Packed layout as linear_bf16.py says. A panel holds [hidden / 4][tokens of the tile][2] pairs.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.isa.simd import (
    I32,
    bf16x16,
    convert,
    f32x16,
    load_first,
    loading,
    shuffle,
    store,
)
from kernels.cpu.isa.simd_neon import (
    FIRST_ROWS,
    FIRST_TOKEN,
    I8X16,
    I32X4,
    LAST_ROWS,
    LAST_TOKEN,
    ROWS,
    dots_of_four_bf16,
    joined,
    registers,
)
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.isa.tiles import load_tile, store_tile, zeros
from kernels.cpu.linear.linear import LANES, Blocking, prefetcher, product
from kernels.cpu.linear.linear_bf16 import PADDED, SIGNATURE
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments

UNIT = 4  # elements, of which a word holds two
STEP = 2 * UNIT * LANES  # bytes of a unit of a group
PAIRS = LANES // 2  # in a register of sixteen
TOKENS = FIRST_TOKEN, LAST_TOKEN
BLOCKING = Blocking((6, 4, 2, 1), tokens=48, units=512)


@inner
def fill(token, size, arguments):
    (x,), (panel,), first, unit, depth = arguments
    target, words = panel[2 * token * depth :], stack(np.int32, PAIRS)
    hidden = x.shape[1]
    for t in range(size):
        begin = (first + token + t) * hidden
        for k in range(0, depth, LANES // UNIT):
            at = UNIT * (unit + k)
            left = max(0, min(LANES, hidden - at))
            store(words, 0, convert(bf16x16, load_first(f32x16, x, begin + at, left)))
            for j in range(min(LANES // UNIT, depth - k)):
                place = 2 * ((k + j) * size + t)
                target[place], target[place + 1] = words[2 * j], words[2 * j + 1]


def pairs_of(sums: types.UniTuple) -> types.UniTuple:
    """The type of a tile's sums in bfmmla's layout."""
    return types.UniTuple(sums.dtype, sums.count + sums.count % 2)


@intrinsic
def by_twos(typing, sums):
    """A tile's sums, from tokens to matrices of two tokens by two rows: those of rows 0 to 7 of two
    tokens, then those of rows 8 to 15."""

    def codegen(context, builder, signature, values):
        held, count = list[Any](), sums.count
        for t in range(0, count, 2):
            both = [
                registers(builder, builder.extract_value(values[0], min(i, count - 1)), ROWS)
                for i in (t, t + 1)
            ]
            twos = [
                shuffle(builder, one, other, half)
                for one, other in zip(*both, strict=True)
                for half in TOKENS
            ]
            held += [joined(builder, twos[:ROWS]), joined(builder, twos[ROWS:])]
        return context.make_tuple(builder, signature.return_type, held)

    return pairs_of(sums)(sums), codegen


@intrinsic
def by_tokens(typing, like, held):
    """The inverse of `by_twos` for a tile `like` this."""

    def codegen(context, builder, signature, values):
        rows = list[Any]()
        for i in range(0, held.count, 2):
            twos = list[Any]()
            for half in (i, i + 1):
                twos += registers(builder, builder.extract_value(values[1], half), ROWS)
            pairs = [*zip(twos[::2], twos[1::2], strict=True)]
            for token in TOKENS:
                own = [shuffle(builder, low, high, token) for low, high in pairs]
                rows.append(joined(builder, own))
        return context.make_tuple(builder, signature.return_type, rows[: like.count])

    return like(like, held), codegen


@intrinsic
def add_dots(typing, like, held, weight, at, panel, where):
    """`held` plus the products of a unit of a group's weights at byte `at` with the panel's words
    from `where`."""

    def codegen(context, builder, signature, values):
        loaded = loading(context, builder, signature, values)
        twos = list[Any]()
        for row in range(0, LANES, ROWS):  # both words of four rows
            one, other = (loaded(2, 4 * (row + word * LANES), I32X4) for word in (0, 1))
            twos += [
                builder.bitcast(shuffle(builder, one, other, half), I8X16)
                for half in (FIRST_ROWS, LAST_ROWS)
            ]
        made = list[Any]()
        for i in range(0, held.count, 2):
            if like.count == 1:
                own = loaded(4, 0, ir.VectorType(I32, 2))
                tokens = shuffle(builder, own, own, (0, 1, 0, 1))
            else:
                tokens = loaded(4, 2 * i, I32X4)
            tokens, sums = builder.bitcast(tokens, I8X16), list[Any]()
            for half in (i, i + 1):
                sums += registers(builder, builder.extract_value(values[1], half), ROWS)
            sums = [
                dots_of_four_bf16(builder, s, tokens, two)
                for s, two in zip(sums, twos, strict=True)
            ]
            made += [joined(builder, sums[:ROWS]), joined(builder, sums[ROWS:])]
        return context.make_tuple(builder, signature.return_type, made)

    return held(like, held, weight, types.intp, panel, types.intp), codegen


def multiply(size: int) -> Any:
    prefetch_next = prefetcher(size, STEP)

    @inner
    def tile(token, arguments):
        (panel,), weight, at, depth, out, first, row, begin, tuning = arguments
        valid = min(LANES, out.shape[1] - row)
        sums = zeros(f32x16, size)
        if not begin:
            sums = load_tile(sums, out, first + token, row, valid)
        held = by_twos(sums)
        for k in range(depth):
            prefetch_next(weight, at + k * STEP, tuning)
            place = 2 * (token * depth + k * size)
            held = add_dots(sums, held, weight, at + k * STEP, panel, place)
        store_tile(by_tokens(sums, held), out, first + token, row, valid)

    return tile


many = product(BLOCKING, fill, multiply)
WORDS = 2 * BLOCKING.size


def neon_bf16(args, thread, n_threads):
    x, weight, tuning, out = arguments(args, SIGNATURE)
    panel = stack(np.int32, WORDS)
    units = (x.shape[1] + PADDED - 1) // PADDED * PADDED // UNIT
    many((x,), (panel,), weight, STEP, units, out, tuning, thread, n_threads)


SHARES = dict.fromkeys(("F32", "F16", "BF16"), Share(lambda: neon_bf16, SIGNATURE))
