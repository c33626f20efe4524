"""Masks of active neurons on the CPU, and their compaction into a list of rows."""

from kernels.cpu.share import arguments, part, share
from reference.neuron_masks import OPS

THRESHOLD, UNION, SPLIT, ROWS, COUNTS, MASKED = (op.signature for op in OPS)


@share(THRESHOLD)
def threshold_mask(block, thread, n_threads):
    logits, threshold, mask = arguments(block, THRESHOLD)
    first, last = part(logits.shape[0], thread, n_threads)
    for t in range(first, last):
        for i in range(logits.shape[1]):
            mask[t, i] = logits[t, i] >= threshold


@share(UNION)
def union_mask(block, thread, n_threads):
    mask, out = arguments(block, UNION)
    first, last = part(mask.shape[1], thread, n_threads)
    for i in range(first, last):
        found = 0
        for t in range(mask.shape[0]):
            found |= mask[t, i]
        for t in range(mask.shape[0]):
            out[t, i] = found


@share(SPLIT)
def neuron_split(block, thread, n_threads):
    mask, places, place, out = arguments(block, SPLIT)
    first, last = part(mask.shape[0], thread, n_threads)
    for t in range(first, last):
        for i in range(mask.shape[1]):
            out[t, i] = mask[t, i] if places[i] == place else 0


@share(ROWS)
def any_token(block, thread, n_threads):
    """rows[i] says for now whether any token needs neuron i."""
    mask, rows, _ = arguments(block, ROWS)
    first, last = part(mask.shape[1], thread, n_threads)
    rows[first:last] = 0
    for t in range(mask.shape[0]):
        for i in range(first, last):
            rows[i] |= mask[t, i]


@share(ROWS)
def compact(block, thread, n_threads):
    """Then the neurons' numbers move to the front, behind what is read."""
    _, rows, count = arguments(block, ROWS)
    if thread:
        return
    found = 0
    for i in range(len(rows)):
        needed = rows[i]
        rows[found] = i
        found += needed
    rows[found:] = 0
    count[0] = found


@share(COUNTS)
def add_counts(block, thread, n_threads):
    mask, before, out = arguments(block, COUNTS)
    first, last = part(mask.shape[1], thread, n_threads)
    for i in range(first, last):
        out[i] = before[i]
    for t in range(mask.shape[0]):
        for i in range(first, last):
            out[i] += mask[t, i]


@share(MASKED)
def where_active(block, thread, n_threads):
    x, mask, out = arguments(block, MASKED)
    first, last = part(mask.shape[0], thread, n_threads)
    for t in range(first, last):
        for i in range(mask.shape[1]):
            out[t, i] = x[t, i] if mask[t, i] else 0
