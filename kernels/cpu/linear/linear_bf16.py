"""linear for F32, F16 and BF16 weights by products of bfloat16 pairs: variant `avx512_bf16`.

Weights and activations are rounded to bfloat16, so this serves only where `numerics="fast"` asks
for it; in exchange a vector unit does twice the work. Sums are float32 chains over pairs in order.

Packed layout, a group of 16 rows after the other: [hidden / 2][16 lanes][2] bfloat16, zeros beyond
rows, and beyond hidden up to whole PADDED (a tile of a matrix unit). A panel holds [hidden / 2]
[tokens of the tile] pairs.
"""

import numpy as np
from numba import njit

from kernels.cpu.isa.simd import bf16x16, bf16x32, convert, f32x16, load, load_first, store
from kernels.cpu.isa.simd_shuffle import stack, transpose
from kernels.cpu.isa.simd_x86 import dot2
from kernels.cpu.isa.tiles import outer
from kernels.cpu.linear.linear import LANES, Blocking, chains, product
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments

SIGNATURE = "x: f32[tokens hidden], weight: u8[packed], tuning: i64[knobs] -> out: f32[tokens out]"
STEP = 4 * LANES
SQUARE = LANES * LANES
PADDED = 32  # elements
BLOCKING = Blocking((16, 8, 4, 2, 1), tokens=64, units=1024)


@inner
def fill(token, size, arguments):
    (x,), (panel,), first, unit, depth = arguments
    target, words = panel[token * depth :], stack(np.int32, SQUARE)
    hidden = x.shape[1]
    for k in range(0, depth, LANES):
        for t in range(size):
            begin = (first + token + t) * hidden
            for half in range(2):
                at = 2 * (unit + k) + half * LANES
                left = max(0, min(LANES, hidden - at))
                pairs = convert(bf16x16, load_first(f32x16, x, begin + at, left))
                store(words, t * LANES + half * LANES // 2, pairs)
        if size == LANES and k + LANES <= depth:
            transpose(words, 0, LANES, target, k * LANES)
        else:
            for j in range(min(LANES, depth - k)):
                for t in range(size):
                    target[(k + j) * size + t] = words[t * LANES + j]


@njit(inline="always")
def pairs(weight, at):
    return load(bf16x32, weight, at)


many = product(BLOCKING, fill, chains(pairs, STEP, outer(dot2)))
SIZE = BLOCKING.size


def avx512_bf16(args, thread, n_threads):
    x, weight, tuning, out = arguments(args, SIGNATURE)
    panel = stack(np.int32, SIZE)
    units = (x.shape[1] + PADDED - 1) // PADDED * PADDED // 2
    many((x,), (panel,), weight, STEP, units, out, tuning, thread, n_threads)


SHARES = dict.fromkeys(("F32", "F16", "BF16"), Share(lambda: avx512_bf16, SIGNATURE))
