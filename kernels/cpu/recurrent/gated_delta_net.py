"""gated_delta_net on the CPU: each thread processes some heads' columns through all tokens,
sixty-four at a time where a head has so many, since their states are adjacent in memory, or
sixteen. `scratch` has the running states, for each thread those of its current columns."""

from kernels.cpu.isa.simd import add, f32x16, fma, load, mul, splat, store, sub, zero
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.sweep import load_some, store_some
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import arguments, part, share
from kernels.shapes import in_place
from reference.op import Shape
from reference.recurrent.gated_delta_net import OP

SIGNATURE = in_place(OP.signature, "n")
LANES = 16
WIDE = 4 * LANES  # columns of a piece


def scratch(shape: Shape) -> int:
    """One state per head, in whole pieces of columns."""
    return shape["heads"] * shape["state"] * -(-shape["head_dim"] // WIDE) * WIDE


@inner
def four(args, h, i, running):
    """WIDE columns of a head, from i, through all tokens."""
    q, k, v, g, beta, group_of, sources, targets, _, out, states = arguments(args, SIGNATURE)
    size, of = q.shape[2], group_of[h]
    for t in range(len(v)):
        decay = exp(splat(f32x16, g[t, h]))
        a = b = c = d = e = f = x = y = zero(f32x16)
        for n in range(size):
            key, at = splat(f32x16, k[t, of, n]), n * WIDE
            if sources[t] >= 0:
                row, j = states[sources[t], h, n], i
            else:
                row, j = running, at
            s = mul(load(f32x16, row, j), decay)
            store(running, at, s)
            a, e = e, fma(s, key, a)
            s = mul(load(f32x16, row, j + 16), decay)
            store(running, at + 16, s)
            b, f = f, fma(s, key, b)
            s = mul(load(f32x16, row, j + 32), decay)
            store(running, at + 32, s)
            c, x = x, fma(s, key, c)
            s = mul(load(f32x16, row, j + 48), decay)
            store(running, at + 48, s)
            d, y = y, fma(s, key, d)
        part_of = splat(f32x16, beta[t, h])
        first = mul(part_of, sub(load(f32x16, v[t, h], i), add(a, e)))
        second = mul(part_of, sub(load(f32x16, v[t, h], i + 16), add(b, f)))
        third = mul(part_of, sub(load(f32x16, v[t, h], i + 32), add(c, x)))
        fourth = mul(part_of, sub(load(f32x16, v[t, h], i + 48), add(d, y)))
        a = b = c = d = e = f = x = y = zero(f32x16)
        for n in range(size):
            key, query, at = splat(f32x16, k[t, of, n]), splat(f32x16, q[t, of, n]), n * WIDE
            s = fma(first, key, load(f32x16, running, at))
            r = fma(second, key, load(f32x16, running, at + 16))
            u = fma(third, key, load(f32x16, running, at + 32))
            w = fma(fourth, key, load(f32x16, running, at + 48))
            if targets[t] >= 0:
                to = states[targets[t], h, n]
                store(to, i, s)
                store(to, i + 16, r)
                store(to, i + 32, u)
                store(to, i + 48, w)
            store(running, at, s)
            store(running, at + 16, r)
            store(running, at + 32, u)
            store(running, at + 48, w)
            a, e = e, fma(s, query, a)
            b, f = f, fma(r, query, b)
            c, x = x, fma(u, query, c)
            d, y = y, fma(w, query, d)
        store(out[t, h], i, add(a, e))
        store(out[t, h], i + 16, add(b, f))
        store(out[t, h], i + 32, add(c, x))
        store(out[t, h], i + 48, add(d, y))


@inner
def one(args, h, i, running):
    """The same for up to LANES columns."""
    q, k, v, g, beta, group_of, sources, targets, _, out, states = arguments(args, SIGNATURE)
    size, of, head_dim = q.shape[2], group_of[h], v.shape[2]
    for t in range(len(v)):
        decay = exp(splat(f32x16, g[t, h]))
        even, odd = zero(f32x16), zero(f32x16)
        for n in range(size):
            if sources[t] >= 0:
                s = load_some(states[sources[t], h, n], i, head_dim)
            else:
                s = load(f32x16, running, n * LANES)
            s = mul(s, decay)
            store(running, n * LANES, s)
            even, odd = odd, fma(s, splat(f32x16, k[t, of, n]), even)
        delta = sub(load_some(v[t, h], i, head_dim), add(even, odd))
        delta = mul(splat(f32x16, beta[t, h]), delta)
        even, odd = zero(f32x16), zero(f32x16)
        for n in range(size):
            s = fma(delta, splat(f32x16, k[t, of, n]), load(f32x16, running, n * LANES))
            store(running, n * LANES, s)
            if targets[t] >= 0:
                store_some(states[targets[t], h, n], i, head_dim, s)
            even, odd = odd, fma(s, splat(f32x16, q[t, of, n]), even)
        store_some(out[t, h], i, head_dim, add(even, odd))


@share(SIGNATURE)
def generic(args, thread, n_threads):
    _, k, v, _, _, _, _, _, scratch, _, _ = arguments(args, SIGNATURE)
    heads, head_dim = v.shape[1], v.shape[2]
    pieces, size = (head_dim + WIDE - 1) // WIDE, WIDE * k.shape[2]
    first, last = part(heads * pieces, thread, n_threads)
    running = scratch[first * size : (first + 1) * size]
    for piece in range(first, last):
        h, i = piece // pieces, piece % pieces * WIDE
        if head_dim - i >= WIDE:
            four(args, h, i, running)
        else:
            for j in range(i, head_dim, LANES):
                one(args, h, j, running)
