"""Filters that keep every logit above a cutoff: min_p, top_n_sigma, mirostat_v2; and xtc."""

import math

import numpy as np
from numba import njit

from kernels.cpu.isa.sweep import alone
from kernels.cpu.runtime.closures import inner
from kernels.cpu.samplers.mass import GONE, highest, total
from reference.samplers import mirostat
from reference.samplers.min_p import OP as MIN_P
from reference.samplers.top_n_sigma import OP as TOP_N_SIGMA
from reference.samplers.xtc import OP as XTC

LOWEST = np.finfo(np.float32).min  # weight of a kept token


@njit(inline="always")
def rounded_up(cut):
    """The least float32 not below the cutoff, so that float32 comparisons decide as float64 ones
    do."""
    single = np.float32(cut)
    return single if single >= cut else np.nextafter(single, np.float32(np.inf))


@inner
def keep_from(logits, cut, out):
    edge = rounded_up(cut)
    for i in range(logits.size):
        logit = logits[i]
        out[i] = logit if logit >= edge else GONE


@alone(MIN_P.signature)
def min_p(logits, p, out):
    keep_from(logits, highest(logits) + math.log(p), out)


@alone(TOP_N_SIGMA.signature)
def top_n_sigma(logits, n, out):
    count, total_logit, squares = 0, 0.0, 0.0
    for i in range(logits.size):
        if logits[i] > GONE:
            count += 1
            total_logit += logits[i]
    mean = total_logit / count
    for i in range(logits.size):
        if logits[i] > GONE:
            squares += (logits[i] - mean) ** 2
    keep_from(logits, highest(logits) - n * math.sqrt(squares / count), out)


@alone(mirostat.SIGNATURE)
def mirostat_v2(logits, mu, out):
    top = highest(logits)
    cut = top + (math.log(total(logits, top)) - mu * math.log(2.0))
    if cut <= top:
        keep_from(logits, cut, out)
    else:
        keep_first(logits, top, out)


@inner
def keep_first(logits, top, out):
    """Only the first token whose logit is `top`."""
    found = False
    for i in range(logits.size):
        hit = logits[i] == top and not found
        found |= hit
        out[i] = logits[i] if hit else GONE


@alone(XTC.signature)
def xtc(logits, probability, threshold, u, out):
    edge, spared = np.float32(np.inf), -1
    if u < probability:
        top = highest(logits)
        edge = max(LOWEST, rounded_up(top + math.log(threshold * total(logits, top))))
        for i in range(logits.size):
            if logits[i] >= edge and (spared < 0 or logits[i] <= logits[spared]):
                spared = i
    for i in range(logits.size):
        logit = logits[i]
        out[i] = GONE if logit >= edge else logit
    if spared >= 0:
        out[spared] = logits[spared]
