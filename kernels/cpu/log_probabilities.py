"""quantise_log_probabilities and kl_divergence on the CPU: one row of a vocabulary."""

import math

import numpy as np
from numba import njit

from kernels.cpu.isa.simd import (
    add,
    convert,
    f32x16,
    insert,
    load,
    mul,
    splat,
    sub,
    sum_lanes,
    u16x16,
    where_above,
)
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.sweep import alone
from kernels.cpu.samplers.mass import GONE, chunk, highest, total
from reference.bounds import TINY
from reference.log_probabilities import DEEPEST, FORGOTTEN, OPS, STEPS

QUANTISE, DIVERGENCE = (op.signature for op in OPS)
DEPTH, SPAN, CUT = np.float32(DEEPEST), np.float32(STEPS), np.float32(FORGOTTEN)
LEAST_SCALE = np.float32(TINY)


@alone(QUANTISE)
def quantise_log_probabilities(logits, codes, line):
    top = highest(logits)
    low = top
    for i in range(logits.size):
        low = min(low, logits[i])
    low = max(low, np.float32(top - DEPTH))
    step = np.float32((top - low) / SPAN)
    inverse = np.float32(1) / step if step >= LEAST_SCALE else np.float32(0)
    line[0] = step if step >= LEAST_SCALE else np.float32(0)
    line[1] = np.float64(low) - np.float64(top) - math.log(total(logits, top))
    for i in range(logits.size):
        above_low = max(logits[i], low) - low
        codes[i] = np.int32(np.rint(inverse * above_low))


@njit(inline="always")
def decoded(codes, i, scale, least):
    """Sixteen log-probabilities from i, -inf beyond the end."""
    if i + 16 <= codes.size:
        steps = convert(f32x16, load(u16x16, codes, i))
        return add(mul(splat(f32x16, scale), steps), splat(f32x16, least))
    tail = splat(f32x16, GONE)
    for j in range(codes.size - i):
        tail = insert(tail, j, np.float32(scale * np.float32(codes[i + j])) + least)
    return tail


@alone(DIVERGENCE)
def kl_divergence(logits, codes, line, out):
    """p (ln p - ln q) by sixteens, lanes reduced in float32 and these sums added in float64."""
    top = highest(logits)
    tops, cut = splat(f32x16, top), splat(f32x16, CUT)
    log_sum = splat(f32x16, np.float32(math.log(total(logits, top))))
    found = 0.0
    for i in range(0, logits.size, 16):
        base = decoded(codes, i, line[0], line[1])
        gap = sub(base, sub(chunk(logits, i), tops))
        terms = mul(exp(base), add(gap, log_sum))
        found += sum_lanes(where_above(base, cut, terms))
    out[0] = found
