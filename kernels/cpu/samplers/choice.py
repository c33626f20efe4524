"""From logits to a token, or to their normaliser: greedy, argmax, draw, log_sum_exp."""

import math

import numpy as np

from kernels.cpu.isa.simd import extract, max_lanes, sum_lanes
from kernels.cpu.isa.sweep import alone, each_row
from kernels.cpu.runtime.closures import inner
from kernels.cpu.samplers.mass import GONE, chunk, highest, powers, total
from reference.samplers.argmax import OP as ARGMAX
from reference.samplers.draw import OP as DRAW
from reference.samplers.greedy import OP as GREEDY
from reference.samplers.log_sum_exp import OP as LOG_SUM_EXP


@alone(GREEDY.signature)
def greedy(logits, token):
    top, at = highest(logits), 0
    while logits[at] != top:
        at += 1
    token[0] = at


@each_row(ARGMAX.signature)
def argmax(row, logits, token, logprob):
    own = logits[row]
    top, at = highest(own), 0
    while own[at] != top:
        at += 1
    token[row] = at
    logprob[row] = -math.log(total(own, top))


@alone(DRAW.signature)
def draw(logits, u, token):
    """The running sum, sixteen at a time until it would pass u, then lane by lane."""
    top = highest(logits)
    mass, whole = 0.0, total(logits, top)
    target = min(u * whole, np.nextafter(whole, 0.0))  # the product may round up to the whole sum
    for i in range(0, logits.size, 16):
        lanes = chunk(logits, i)
        if max_lanes(lanes) > GONE:
            weights = powers(lanes, top)
            after = mass + sum_lanes(weights)
            if after > target:
                token[0] = lane_at(weights, mass, target) + i
                return
            mass = after


@inner
def lane_at(weights, mass, target):
    """The lane at which the running sum passes target; the last nonzero one if rounding hides
    it."""
    at = 0
    for j in range(16):
        if extract(weights, j) > 0:
            at = j
            mass += extract(weights, j)
            if mass > target:
                break
    return at


@alone(LOG_SUM_EXP.signature)
def log_sum_exp(logits, out):
    top = highest(logits)
    out[0] = top + math.log(total(logits, top))
