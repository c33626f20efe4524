"""quantise_activations on the CPU: (token, block) pairs are shared among threads."""

import math

import numpy as np

from kernels.cpu.share import arguments, part, share
from reference.quantise_activations import BLOCK, OP

SIGNATURE = OP.signature


@share(SIGNATURE)
def generic(block, thread, n_threads):
    x, q, scale, total = arguments(block, SIGNATURE)
    tokens, blocks = scale.shape
    first, last = part(tokens * blocks, thread, n_threads)
    for i in range(first, last):
        t, b = i // blocks, i % blocks
        values, quants = x[t, b * BLOCK : (b + 1) * BLOCK], q[t, b * BLOCK : (b + 1) * BLOCK]
        largest = np.float32(0)
        finite = True
        for j in range(BLOCK):
            magnitude = abs(values[j])
            finite = finite and magnitude < np.inf
            largest = max(largest, magnitude)
        d = largest / np.float32(127)
        inverse = np.float32(1) / d if d > 0 else np.float32(0)
        if not finite or math.isinf(inverse):
            inverse = np.float32(0)
        count = np.int32(0)
        for j in range(BLOCK):
            scaled = values[j] * inverse if finite else np.float32(0)
            rounded = np.int32(scaled + math.copysign(np.float32(0.5), scaled))
            quants[j] = rounded
            count += rounded
        scale[t, b] = d if finite else np.float32(np.nan)
        total[t, b] = count
