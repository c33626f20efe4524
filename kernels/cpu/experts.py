"""Mixtures of experts on the CPU: tokens are shared among threads, but for the sort."""

import numpy as np
from numba import njit

from kernels.cpu.activations import over_one_plus_exp
from kernels.cpu.isa.simd import f32x16, fma, mul, splat, sub, zero
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.isa.sweep import load_some, store_some
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import arguments, part, share
from reference.experts import CHOOSE, GATE, LEAST, PICK, SHARES, SORT, SUM
from reference.op import Shape

MOST = 1024  # experts


def fits(shape: Shape) -> bool:
    """Whether the ranks of a token's experts have their place."""
    return shape["experts"] <= MOST


@njit(inline="always")
def better(ranks, one, other):
    """Of equals the first."""
    return ranks[one] > ranks[other] or (ranks[one] == ranks[other] and one < other)


@inner
def best_two(ranks, begin, size):
    """The sum of the two best of a group, or the only one."""
    first = second = -np.float32(np.inf)
    for e in range(begin, begin + size):
        if ranks[e] > first:
            first, second = ranks[e], first
        elif ranks[e] > second:
            second = ranks[e]
    return first + second if size > 1 else first


@inner
def drop_groups(ranks, experts, groups, kept, sums):
    """Experts of all groups but the best become worse than any."""
    size = experts // groups
    for g in range(groups):
        sums[g] = best_two(ranks, g * size, size)
    for g in range(groups):
        ahead = 0
        for other in range(groups):
            ahead += better(sums, other, g)
        if ahead >= kept:
            ranks[g * size : g * size + size] = -np.float32(np.inf)


@share(CHOOSE)
def choose_experts(block, thread, n_threads):
    """The best that comes after the one before, as often as needed; each to its place among those
    found. Where a score is NaN it is any choice, but one."""
    scores, bias, used, groups, kept, chosen = arguments(block, CHOOSE)
    tokens, experts = scores.shape
    ranks, sums = stack(np.float32, MOST), stack(np.float32, MOST)
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
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


@share(PICK)
def scores_of_chosen(block, thread, n_threads):
    scores, chosen, out = arguments(block, PICK)
    first, last = part(chosen.shape[0], thread, n_threads)
    for t in range(first, last):
        for k in range(chosen.shape[1]):
            out[t, k] = scores[t, chosen[t, k]]


@share(SHARES)
def shares_of_sum(block, thread, n_threads):
    """NaN stays NaN."""
    weights, out = arguments(block, SHARES)
    first, last = part(weights.shape[0], thread, n_threads)
    for t in range(first, last):
        total = np.float32(0)
        for k in range(weights.shape[1]):
            total += weights[t, k]
        if total < np.float32(LEAST):
            total = np.float32(LEAST)
        for k in range(weights.shape[1]):
            out[t, k] = weights[t, k] / total


@share(SORT)
def sort_by_expert(block, thread, n_threads):
    """By one thread, counting: for a few tokens others would wait longer than they could help."""
    chosen, experts, rows, expert, places, ends, needed, found = arguments(block, SORT)
    if thread:
        return
    tokens, used = chosen.shape
    ends[:] = 0
    for t in range(tokens):
        for k in range(used):
            ends[chosen[t, k]] += 1
    begin = some = 0
    needed[:] = 0
    for e in range(experts):  # where each run begins, until pairs take their places
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


@share(SUM)
def sum_experts(block, thread, n_threads):
    y, places, weights, out = arguments(block, SUM)
    tokens, used = places.shape
    hidden = out.shape[1]
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
        target = out[t]
        for i in range(0, hidden, 16):
            total = zero(f32x16)
            for k in range(used):
                row = y[places[t, k]]
                total = fma(splat(f32x16, weights[t, k]), load_some(row, i, hidden), total)
            store_some(target, i, hidden, total)


@share(GATE)
def open_gate(block, thread, n_threads):
    x, gate, out = arguments(block, GATE)
    tokens, width = x.shape
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
        row, target = x[t], out[t]
        logit = splat(f32x16, gate[t, 0])
        opened = over_one_plus_exp(splat(f32x16, 1.0), sub(zero(f32x16), logit))
        for i in range(0, width, 16):
            store_some(target, i, width, mul(opened, load_some(row, i, width)))
