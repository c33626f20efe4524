"""add_squares on the CPU, onto the sums themselves: columns are shared among threads."""

import numpy as np

from kernels.cpu.share import arguments, part, share

SIGNATURE = "x: f32[tokens hidden] -> out: f64[hidden]"


@share(SIGNATURE)
def add_squares(block, thread, n_threads):
    x, out = arguments(block, SIGNATURE)
    first, last = part(x.shape[1], thread, n_threads)
    for t in range(x.shape[0]):
        for j in range(first, last):
            value = np.float64(x[t, j])
            out[j] += value * value
