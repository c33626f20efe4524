"""Masks of active neurons on the CPU, and their compaction into a list of rows."""

import numpy as np

from kernels.cpu.isa.simd import lowest_bit, nonzero
from kernels.cpu.isa.sweep import alone, each_row
from kernels.cpu.runtime.share import arguments, part, share
from reference.sparse.neuron_masks import OPS

THRESHOLD, UNION, SPLIT, ROWS, COUNTS, MASKED = (op.signature for op in OPS)


@each_row(THRESHOLD)
def threshold_mask(t, logits, threshold, mask):
    for i in range(logits.shape[1]):
        mask[t, i] = logits[t, i] >= threshold


@share(UNION)
def union_mask(args, thread, n_threads):
    mask, out = arguments(args, UNION)
    first, last = part(mask.shape[1], thread, n_threads)
    for i in range(first, last):
        found = 0
        for t in range(mask.shape[0]):
            found |= mask[t, i]
        for t in range(mask.shape[0]):
            out[t, i] = found


@each_row(SPLIT)
def neuron_split(t, mask, places, place, out):
    for i in range(mask.shape[1]):
        out[t, i] = mask[t, i] if places[i] == place else 0


@alone(ROWS)
def active_rows(mask, rows, count):
    """By one thread: for a single token the others would wait longer than they could help."""
    tokens, neurons = mask.shape
    found, whole = 0, neurons // 64 * 64
    for i in range(0, whole, 64):
        bits = np.uint64(0)
        for t in range(tokens):
            bits |= nonzero(mask, t * neurons + i)
        while bits:
            rows[found] = i + lowest_bit(bits)
            bits &= bits - np.uint64(1)
            found += 1
    for i in range(whole, neurons):
        rows[found] = i
        for t in range(tokens):
            if mask[t, i]:
                found += 1
                break
    rows[found:] = 0
    count[0] = found


@share(COUNTS)
def add_counts(args, thread, n_threads):
    mask, before, out = arguments(args, COUNTS)
    first, last = part(mask.shape[1], thread, n_threads)
    for i in range(first, last):
        out[i] = before[i]
    for t in range(mask.shape[0]):
        for i in range(first, last):
            out[i] += mask[t, i]


@each_row(MASKED)
def where_active(t, x, mask, out):
    for i in range(mask.shape[1]):
        out[t, i] = x[t, i] if mask[t, i] else 0
