"""rms_norm on the CPU: tokens are shared among threads, a token's sum is float64."""

import math

from numba import njit

from kernels.cpu.share import arguments, part, share
from reference.rms_norm import OP

SIGNATURE = OP.signature


@njit
def sum_of_squares(row):
    """Four partial sums in a fixed order, so that their latencies overlap."""
    a = b = c = d = 0.0
    whole = len(row) // 4 * 4
    for i in range(0, whole, 4):
        a += float(row[i]) * float(row[i])
        b += float(row[i + 1]) * float(row[i + 1])
        c += float(row[i + 2]) * float(row[i + 2])
        d += float(row[i + 3]) * float(row[i + 3])
    for i in range(whole, len(row)):
        a += float(row[i]) * float(row[i])
    return (a + b) + (c + d)


@share(SIGNATURE)
def generic(block, thread, n_threads):
    x, weight, eps, out = arguments(block, SIGNATURE)
    tokens, hidden = x.shape
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
        factor = 1.0 / math.sqrt(sum_of_squares(x[t]) / hidden + eps)
        for i in range(hidden):
            out[t, i] = float(x[t, i]) * factor * float(weight[i])
