"""Mixtures of experts on the CPU: tokens are split among threads, except in the sort."""

import numpy as np
from numba import njit

from kernels.cpu.activations import over_one_plus_exp
from kernels.cpu.isa.simd import f32x16, fma, mul, splat, sub, zero
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.isa.sweep import alone, each_row, load_some, store_some
from kernels.cpu.runtime.closures import inner
from reference.experts import CHOOSE, GATE, LEAST, PICK, SHARES, SORT, SUM
from reference.op import Shape

MOST = 1024  # experts


def fits(shape: Shape) -> bool:
    """Whether the selection of a token's experts fits the kernel's buffers."""
    return shape["experts"] <= MOST


@njit(inline="always")
def better(ranks, one, other):
    """Ties go to the first."""
    return ranks[one] > ranks[other] or (ranks[one] == ranks[other] and one < other)


@inner
def best_two(ranks, begin, size):
    """The sum of the two best scores of a group, or the only one."""
    first = second = -np.float32(np.inf)
    for e in range(begin, begin + size):
        if ranks[e] > first:
            first, second = ranks[e], first
        elif ranks[e] > second:
            second = ranks[e]
    return first + second if size > 1 else first


@inner
def drop_groups(ranks, experts, groups, kept, sums):
    """Set scores of all groups but the best below any other."""
    size = experts // groups
    for g in range(groups):
        sums[g] = best_two(ranks, g * size, size)
    for g in range(groups):
        ahead = 0
        for other in range(groups):
            ahead += better(sums, other, g)
        if ahead >= kept:
            ranks[g * size : g * size + size] = -np.float32(np.inf)


@each_row(CHOOSE)
def choose_experts(t, scores, bias, used, groups, kept, chosen):
    """Repeatedly the best after the previous one, inserted in order. With NaN scores any valid
    choice."""
    experts = scores.shape[1]
    ranks, sums = stack(np.float32, MOST), stack(np.float32, MOST)
    for e in range(experts):
        ranks[e] = scores[t, e] + bias[e]
    if kept < groups:
        drop_groups(ranks, experts, groups, kept, sums)
    before = -1
    for k in range(used):
        best = -1
        for e in range(experts):
            follows = before < 0 or better(ranks, before, e)
            if follows and (best < 0 or better(ranks, e, best)):
                best = e
        before = max(best, 0)
        at = k
        while at > 0 and chosen[t, at - 1] > before:
            chosen[t, at] = chosen[t, at - 1]
            at -= 1
        chosen[t, at] = before


@each_row(PICK)
def gather_scores(t, scores, chosen, out):
    for k in range(chosen.shape[1]):
        out[t, k] = scores[t, chosen[t, k]]


@each_row(SHARES)
def normalise_weights(t, weights, out):
    """NaN stays NaN."""
    total = np.float32(0)
    for k in range(weights.shape[1]):
        total += weights[t, k]
    if total < np.float32(LEAST):
        total = np.float32(LEAST)
    for k in range(weights.shape[1]):
        out[t, k] = weights[t, k] / total


@alone(SORT)
def sort_by_expert(chosen, experts, rows, expert, places, ends, needed, found):
    """A counting sort by one thread: for a few tokens others would wait longer than they could
    help."""
    tokens, used = chosen.shape
    ends[:] = 0
    for t in range(tokens):
        for k in range(used):
            ends[chosen[t, k]] += 1
    begin = some = 0
    needed[:] = 0
    for e in range(experts):  # beginnings of runs, until pairs are placed
        count = ends[e]
        ends[e] = begin
        begin += count
        if count:
            needed[some] = e
            some += 1
    found[0] = some
    for t in range(tokens):
        for k in range(used):
            e = chosen[t, k]
            place = ends[e]
            rows[place], expert[place], places[t, k] = t, e, place
            ends[e] = place + 1


@each_row(SUM, 1)
def sum_experts(t, y, places, weights, out):
    used, hidden = places.shape[1], out.shape[1]
    target = out[t]
    for i in range(0, hidden, 16):
        total = zero(f32x16)
        for k in range(used):
            row = y[places[t, k]]
            total = fma(splat(f32x16, weights[t, k]), load_some(row, i, hidden), total)
        store_some(target, i, hidden, total)


@each_row(GATE)
def sigmoid_gate(t, x, gate, out):
    width = x.shape[1]
    row, target = x[t], out[t]
    logit = splat(f32x16, gate[t, 0])
    opened = over_one_plus_exp(splat(f32x16, 1.0), sub(zero(f32x16), logit))
    for i in range(0, width, 16):
        store_some(target, i, width, mul(opened, load_some(row, i, width)))
