"""add, add_bias and scale on the CPU: elements are shared among threads."""

import numpy as np

from kernels.cpu.share import arguments, part, share
from reference.arithmetic import OPS

ADD, ADD_BIAS, SCALE = (op.signature for op in OPS)


@share(ADD)
def add(block, thread, n_threads):
    x, y, out = arguments(block, ADD)
    left, right, target = x.ravel(), y.ravel(), out.ravel()
    first, last = part(x.size, thread, n_threads)
    for i in range(first, last):
        target[i] = left[i] + right[i]


@share(ADD_BIAS)
def add_bias(block, thread, n_threads):
    x, bias, out = arguments(block, ADD_BIAS)
    first, last = part(x.shape[1], thread, n_threads)
    for t in range(x.shape[0]):
        for i in range(first, last):
            out[t, i] = x[t, i] + bias[i]


@share(SCALE)
def scale(block, thread, n_threads):
    x, factor, out = arguments(block, SCALE)
    source, target = x.ravel(), out.ravel()
    first, last = part(x.size, thread, n_threads)
    for i in range(first, last):
        target[i] = source[i] * np.float32(factor)
