"""The softmax distribution of logits: its maximum, exponentials and their sum.

Exponentials are float32 by sixteens; lanes are reduced in float32 and these sums added in float64,
in order. Sixteens without a remaining token are skipped, which makes filters after top-k cheap.
"""

import numpy as np
from numba import njit

from kernels.cpu.isa.simd import f32x16, insert, load, max_lanes, maximum, splat, sub, sum_lanes
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.runtime.closures import inner

GONE = np.float32(-np.inf)


@njit(inline="always")
def chunk(logits, i):
    """Sixteen logits from i, -inf beyond the end."""
    if i + 16 <= logits.size:
        return load(f32x16, logits, i)
    tail = splat(f32x16, GONE)
    for j in range(logits.size - i):
        tail = insert(tail, j, logits[i + j])
    return tail


@inner
def highest(logits):
    """The largest logit."""
    best = splat(f32x16, GONE)
    for i in range(0, logits.size, 16):
        best = maximum(chunk(logits, i), best)
    return max_lanes(best)


@njit(inline="always")
def powers(logits, top):
    """exp(logit - top), lane by lane."""
    return exp(sub(logits, splat(f32x16, top)))


@inner
def total(logits, top):
    """The sum of all exp(logit - top), float64."""
    mass = 0.0
    for i in range(0, logits.size, 16):
        lanes = chunk(logits, i)
        if max_lanes(lanes) > GONE:
            mass += sum_lanes(powers(lanes, top))
    return mass
