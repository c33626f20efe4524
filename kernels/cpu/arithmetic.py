"""add, add_bias and scale on the CPU: tokens are shared among threads."""

import numpy as np

from kernels.cpu.share import arguments, part, share
from kernels.cpu.simd import add as plus
from kernels.cpu.simd import f32x16, mul, splat
from kernels.cpu.sweep import load_some, own_elements, store_some
from reference.arithmetic import OPS

ADD, ADD_BIAS, SCALE = (op.signature for op in OPS)


@share(ADD)
def add(block, thread, n_threads):
    x, y, out = arguments(block, ADD)
    first, last = own_elements(x, thread, n_threads)
    for i in range(first, last, 16):
        store_some(out, i, last, plus(load_some(x, i, last), load_some(y, i, last)))


@share(ADD_BIAS)
def add_bias(block, thread, n_threads):
    x, bias, out = arguments(block, ADD_BIAS)
    tokens, width = x.shape
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
        row, target = x[t], out[t]
        for i in range(0, width, 16):
            total = plus(load_some(row, i, width), load_some(bias, i, width))
            store_some(target, i, width, total)


@share(SCALE)
def scale(block, thread, n_threads):
    x, factor, out = arguments(block, SCALE)
    first, last = own_elements(x, thread, n_threads)
    factors = splat(f32x16, np.float32(factor))
    for i in range(first, last, 16):
        store_some(out, i, last, mul(load_some(x, i, last), factors))
