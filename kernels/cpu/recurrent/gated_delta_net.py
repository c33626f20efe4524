"""gated_delta_net on the CPU: a thread has some heads' columns and takes them through all tokens,
sixteen at a time. `scratch` has the states that run."""

from kernels.cpu.isa.simd import add, f32x16, fma, mul, splat, sub, zero
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.sweep import load_some, store_some
from kernels.cpu.runtime.share import arguments, part, share
from kernels.shapes import in_place
from reference.op import Shape
from reference.recurrent.gated_delta_net import OP

SIGNATURE = in_place(OP.signature, "n")
LANES = 16


def scratch(shape: Shape) -> int:
    """A state of each head, in whole sixteens of columns."""
    return shape["heads"] * shape["state"] * -(-shape["head_dim"] // LANES) * LANES


@share(SIGNATURE)
def generic(block, thread, n_threads):
    q, k, v, g, beta, group_of, sources, targets, scratch, out, states = arguments(block, SIGNATURE)
    tokens, heads, head_dim = v.shape
    size = q.shape[2]
    pieces = (head_dim + LANES - 1) // LANES
    first, last = part(heads * pieces, thread, n_threads)
    for piece in range(first, last):
        h, i = piece // pieces, piece % pieces * LANES
        of = group_of[h]
        running = scratch[piece * LANES * size : (piece + 1) * LANES * size]
        for t in range(tokens):
            decay = exp(splat(f32x16, g[t, h]))
            even, odd = zero(f32x16), zero(f32x16)
            for n in range(size):
                if sources[t] >= 0:
                    s = load_some(states[sources[t], h, n], i, head_dim)
                else:
                    s = load_some(running, n * LANES, len(running))
                s = mul(s, decay)
                store_some(running, n * LANES, len(running), s)
                even, odd = odd, fma(s, splat(f32x16, k[t, of, n]), even)
            delta = sub(load_some(v[t, h], i, head_dim), add(even, odd))
            delta = mul(splat(f32x16, beta[t, h]), delta)
            even, odd = zero(f32x16), zero(f32x16)
            for n in range(size):
                s = load_some(running, n * LANES, len(running))
                s = fma(delta, splat(f32x16, k[t, of, n]), s)
                store_some(running, n * LANES, len(running), s)
                if targets[t] >= 0:
                    store_some(states[targets[t], h, n], i, head_dim, s)
                even, odd = odd, fma(s, splat(f32x16, q[t, of, n]), even)
            store_some(out[t, h], i, head_dim, add(even, odd))
