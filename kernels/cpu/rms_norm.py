"""rms_norm on the CPU: tokens are shared among threads.

- `generic`: sixteen elements at a time, sixteen partial sums in float32.
- `scalar`: plain loops, the sum in float64; the fallback.
"""

import math

from kernels.cpu.isa.simd import f32x16, fma, mul, splat, sum_lanes, zero
from kernels.cpu.isa.sweep import each_row, load_some, store_some
from reference.rms_norm import OP

SIGNATURE = OP.signature


@each_row(SIGNATURE)
def generic(t, x, weight, eps, out):
    hidden = x.shape[1]
    row, target = x[t], out[t]
    squares = zero(f32x16)
    for i in range(0, hidden, 16):
        values = load_some(row, i, hidden)
        squares = fma(values, values, squares)
    factor = splat(f32x16, 1.0 / math.sqrt(sum_lanes(squares) / hidden + eps))
    for i in range(0, hidden, 16):
        scaled = mul(load_some(row, i, hidden), factor)
        store_some(target, i, hidden, mul(scaled, load_some(weight, i, hidden)))


@each_row(SIGNATURE)
def scalar(t, x, weight, eps, out):
    hidden = x.shape[1]
    squares = 0.0
    for i in range(hidden):
        squares += float(x[t, i]) * float(x[t, i])
    factor = 1.0 / math.sqrt(squares / hidden + eps)
    for i in range(hidden):
        out[t, i] = float(x[t, i]) * factor * float(weight[i])
