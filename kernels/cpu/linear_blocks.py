"""The loop that linear's kernels share for weights in blocks of 32 and quantised activations.

`lanes` rows travel together, one row a lane, block after block; a block is `payload` bytes and then
a float16 scale for each row. Blocks are added in order with one fused multiply-add each, so every
variant gives the same bits, whatever the number of tokens or threads. A variant says what a block's
dot products are: `sums1` for one token and `sums4` for four, exact integers as float vectors.
"""

from numba import njit, types
from numba.extending import models, register_model

from kernels.cpu.share import part
from kernels.cpu.simd import convert, fma, load, mul, splat, store_first, zero

QUANTISED = (
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32],"
    " weight: u8[packed] -> out: f32[tokens out]"
)


class Layout(types.Type):
    """A packed layout as a compile-time argument."""

    def __init__(self, variant: str, format: str) -> None:
        super().__init__(name=f"layout.{variant}.{format}")


register_model(Layout)(models.OpaqueModel)


def sums1(layout, weight, base, q, total, t, i):
    """Dot products of block i of `lanes` rows, packed at `base`, with token t."""
    raise NotImplementedError("known to compiled code only")


def sums4(layout, weight, base, q, total, t, i):
    """The same with tokens t to t + 3, as a tuple of four."""
    raise NotImplementedError("known to compiled code only")


@njit(inline="always")
def put(out, token, first, lanes, value):
    """Store `lanes` outputs of one token from row `first` on; the last group may be partial."""
    width = out.shape[1]
    store_first(out, token * width + first, value, min(lanes, width - first))


@njit(inline="always")
def add_block(sum_, w, scale, exact, floats):
    return fma(mul(w, splat(floats, scale)), exact, sum_)


@njit
def rows(layout, floats, halves, lanes, payload, block, thread, n_threads):
    """All outputs of this thread's groups of rows, four tokens at a time."""
    q, scale, total, weight, out = block
    tokens, blocks = scale.shape
    step = payload + 2 * lanes
    first, last = part((out.shape[1] + lanes - 1) // lanes, thread, n_threads)
    for group in range(first, last):
        row = group * lanes
        t = 0
        while t + 4 <= tokens:
            a, b, c, d = zero(floats), zero(floats), zero(floats), zero(floats)
            for i in range(blocks):
                base = (group * blocks + i) * step
                w = convert(floats, load(halves, weight, base + payload))
                dots = sums4(layout, weight, base, q, total, t, i)
                a = add_block(a, w, scale[t, i], dots[0], floats)
                b = add_block(b, w, scale[t + 1, i], dots[1], floats)
                c = add_block(c, w, scale[t + 2, i], dots[2], floats)
                d = add_block(d, w, scale[t + 3, i], dots[3], floats)
            put(out, t, row, lanes, a)
            put(out, t + 1, row, lanes, b)
            put(out, t + 2, row, lanes, c)
            put(out, t + 3, row, lanes, d)
            t += 4
        while t < tokens:
            a = zero(floats)
            for i in range(blocks):
                base = (group * blocks + i) * step
                w = convert(floats, load(halves, weight, base + payload))
                dot = sums1(layout, weight, base, q, total, t, i)
                a = add_block(a, w, scale[t, i], dot, floats)
            put(out, t, row, lanes, a)
            t += 1
