"""The scans of state space models on the CPU: each thread processes some channels, or some heads,
through all tokens, sixteen channels at a time. `scratch` has the running states."""

from kernels.cpu.isa.simd import f32x16, fma, mul, splat, zero
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.sweep import load_some, store_some
from kernels.cpu.runtime.share import arguments, part, share
from kernels.shapes import in_place
from reference.op import Shape
from reference.recurrent.ssm_scan import HEADS, SCAN

CHANNELS, OF_HEADS = in_place(SCAN, "n"), in_place(HEADS, "n")
LANES = 16


def of_channels(shape: Shape) -> int:
    """One state per channel, in whole sixteens."""
    return shape["state"] * -(-shape["inner"] // LANES) * LANES


def of_heads(shape: Shape) -> int:
    """The same for each head's channels."""
    return shape["heads"] * shape["state"] * -(-shape["head_dim"] // LANES) * LANES


@share(CHANNELS)
def channels(args, thread, n_threads):
    x, dt, a, b, c, d, sources, targets, scratch, out, states = arguments(args, CHANNELS)
    tokens, inner = x.shape
    size = len(a)
    first, last = part((inner + LANES - 1) // LANES, thread, n_threads)
    for i in range(first * LANES, min(last * LANES, inner), LANES):
        running = scratch[i * size : (i + LANES) * size]
        for t in range(tokens):
            own, step = load_some(x[t], i, inner), load_some(dt[t], i, inner)
            moved = mul(own, step)
            total = mul(load_some(d, i, inner), own)
            for n in range(size):
                if sources[t] >= 0:
                    s = load_some(states[sources[t], n], i, inner)
                else:
                    s = load_some(running, n * LANES, len(running))
                decay = exp(mul(step, load_some(a[n], i, inner)))
                s = fma(s, decay, mul(moved, splat(f32x16, b[t, n])))
                store_some(running, n * LANES, len(running), s)
                if targets[t] >= 0:
                    store_some(states[targets[t], n], i, inner, s)
                total = fma(s, splat(f32x16, c[t, n]), total)
            store_some(out[t], i, inner, total)


@share(OF_HEADS)
def heads(args, thread, n_threads):
    x, dt, a, b, c, d, sources, targets, scratch, out, states = arguments(args, OF_HEADS)
    tokens, count, head_dim = x.shape
    groups, size = b.shape[1], b.shape[2]
    pieces = (head_dim + LANES - 1) // LANES
    first, last = part(count * pieces, thread, n_threads)
    for piece in range(first, last):
        h, i = piece // pieces, piece % pieces * LANES
        g = h * groups // count
        running = scratch[piece * LANES * size : (piece + 1) * LANES * size]
        for t in range(tokens):
            own, step = load_some(x[t, h], i, head_dim), splat(f32x16, dt[t, h])
            moved = mul(own, step)
            decay = exp(splat(f32x16, dt[t, h] * a[h]))
            total = zero(f32x16)
            for n in range(size):
                if sources[t] >= 0:
                    s = load_some(states[sources[t], h, n], i, head_dim)
                else:
                    s = load_some(running, n * LANES, len(running))
                s = fma(s, decay, mul(moved, splat(f32x16, b[t, g, n])))
                store_some(running, n * LANES, len(running), s)
                if targets[t] >= 0:
                    store_some(states[targets[t], h, n], i, head_dim, s)
                total = fma(s, splat(f32x16, c[t, g, n]), total)
            store_some(out[t, h], i, head_dim, fma(splat(f32x16, d[h]), own, total))
