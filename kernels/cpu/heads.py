"""split_heads and merge_heads on the CPU: copies; tokens are split among threads."""

from kernels.cpu.isa.sweep import each_row
from kernels.cpu.runtime.share import arguments, part, share
from reference.heads import APART, JOINED


@share(APART)
def split_heads(args, thread, n_threads):
    x, size, out, ends = arguments(args, APART)
    tokens, heads, _ = x.shape
    first, last = part(tokens, thread, n_threads)
    for t in range(first, last):
        for h in range(heads):
            row = out[h * tokens + t]
            for d in range(size):
                row[d] = x[t, h, d]
    if thread == 0:
        for h in range(heads):
            ends[h] = (h + 1) * tokens


@each_row(JOINED, 1)
def merge_heads(t, y, x, whole, out):
    tokens, heads, width = x.shape
    size = y.shape[1]
    before = width - (whole - size)
    for h in range(heads):
        row, joined = y[h * tokens + t], out[t, h]
        for d in range(size):
            joined[d] = row[d]
        for d in range(size, whole):
            joined[d] = x[t, h, before + d - size]
