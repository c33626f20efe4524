"""causal_conv1d on the CPU: channels are split among threads, sixteen at a time."""

from kernels.cpu.isa.simd import fma
from kernels.cpu.isa.sweep import load_some, store_some
from kernels.cpu.runtime.share import arguments, part, share
from kernels.shapes import in_place
from reference.recurrent.causal_conv1d import OP

SIGNATURE = in_place(OP.signature)


@share(SIGNATURE)
def generic(args, thread, n_threads):
    """Token t's column i is x[i] within its run, and the run's state before it."""
    x, weight, bias, sources, targets, out, states = arguments(args, SIGNATURE)
    tokens, width = x.shape
    taps = len(weight)
    kept = taps - 1
    first, last = part((width + 15) // 16, thread, n_threads)
    for c in range(16 * first, min(16 * last, width), 16):
        begin, slot = 0, 0
        for t in range(tokens):
            if sources[t] >= 0:
                begin, slot = t, sources[t]
            total = load_some(bias, c, width)
            for j in range(taps):
                i = t - kept + j
                column = x[i] if i >= begin else states[slot, kept + i - begin]
                total = fma(load_some(weight[j], c, width), load_some(column, c, width), total)
            store_some(out[t], c, width, total)
            if targets[t] >= 0:
                for j in range(kept):
                    i = t - kept + 1 + j
                    column = x[i] if i >= begin else states[slot, kept + i - begin]
                    store_some(states[targets[t], j], c, width, load_some(column, c, width))
