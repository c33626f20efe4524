"""softmax on the CPU: tokens are split among threads; three passes over a row."""

import numpy as np
from numba import njit

from kernels.cpu.isa.simd import extract, f32x16, load, load_first, splat, store, store_first, sub
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.sweep import each_row
from reference.softmax import OP


@njit(inline="always")
def powers(x, i, width, highest):
    """exp(x - highest) of up to sixteen elements at i."""
    if i + 16 <= width:
        return exp(sub(load(f32x16, x, i), splat(f32x16, highest)))
    return exp(sub(load_first(f32x16, x, i, width - i), splat(f32x16, highest)))


@each_row(OP.signature)
def generic(t, x, out):
    width = x.shape[1]
    source, row = x[t], out[t]
    highest = np.float32(-np.inf)
    for i in range(width):
        highest = max(highest, source[i])
    total = 0.0
    for i in range(0, width, 16):
        block_powers = powers(source, i, width, highest)
        for j in range(min(16, width - i)):
            total += extract(block_powers, j)
        if i + 16 <= width:
            store(row, i, block_powers)
        else:
            store_first(row, i, block_powers, width - i)
    inverse = 1.0 / total
    for i in range(width):
        row[i] = row[i] * inverse
