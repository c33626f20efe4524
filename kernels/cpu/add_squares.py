"""add_squares on the CPU, over all tokens or per expert: columns are split among threads. `out` may
alias `before`, and `counts` may alias `met`."""

import numpy as np

from kernels.cpu.runtime.share import arguments, part, share
from reference.add_squares import BY_EXPERT, OP

SIGNATURE = OP.signature


@share(SIGNATURE)
def add_squares(args, thread, n_threads):
    x, before, out = arguments(args, SIGNATURE)
    first, last = part(x.shape[1], thread, n_threads)
    for j in range(first, last):
        out[j] = before[j]
    for t in range(x.shape[0]):
        for j in range(first, last):
            value = np.float64(x[t, j])
            out[j] += value * value


@share(BY_EXPERT)
def add_squares_by_expert(args, thread, n_threads):
    x, ends, before, met, out, counts = arguments(args, BY_EXPERT)
    first, last = part(x.shape[1], thread, n_threads)
    begin = 0
    for e in range(len(ends)):
        if thread == 0:
            counts[e] = met[e] + (ends[e] - begin)
        for j in range(first, last):
            out[e, j] = before[e, j]
        for t in range(begin, ends[e]):
            for j in range(first, last):
                value = np.float64(x[t, j])
                out[e, j] += value * value
        begin = ends[e]
