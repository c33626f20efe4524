"""sparse_linear on the CPU: the rows of sixteen active neurons at a time are gathered (rows.py) and
multiplied like linear's packed groups, so that every output has linear's bits.

Rows may be strided: a weight's second axis is their stride. Groups of the active neurons are split
among threads, whatever the mask; a thread also writes the zeros before its neurons.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.decoding import CODINGS
from kernels.cpu.formats.layouts import LAYOUTS
from kernels.cpu.formats.rows import PIECES, dot_in_lines, dot_units, gather_units
from kernels.cpu.isa.simd import store as store_vector
from kernels.cpu.isa.simd_shuffle import stack
from kernels.cpu.isa.tiles import fma_outer, in_tiles
from kernels.cpu.linear import linear_avx2, linear_blocks, linear_float, linear_int8
from kernels.cpu.linear.linear import FIRST, LANES, NEVER, Blocking, chains, filling, named
from kernels.cpu.linear.linear_blocks import Microkernel
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, by_format, part
from reference.op import Shape

REST = (
    " weight: u8[held stride], mask: u8[tokens neurons], rows: i32[neurons], count: i32[1],"
    " slots: i32[neurons], tuning: i64[knobs] -> out: f32[tokens neurons]"
)
FLOAT = "x: f32[tokens hidden]," + REST
INT8 = "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32]," + REST
BROUGHT = 36864  # bytes of a group that are gathered at once: about half of a first level of cache


def fewer(blocking: Blocking) -> Blocking:
    """Every other width of tiles: half the code, for rare numbers of tokens."""
    widths = blocking.tiles
    return replace(blocking, tiles=tuple(w for i, w in enumerate(widths) if i % 2 == 0 or w == 1))


@inner
def begin_rows(where, group, active, starts):
    """Where a group's rows begin; lanes beyond the last neuron have the last one's."""
    rows, slots, stride = where
    for lane in range(LANES):
        starts[lane] = np.int64(slots[rows[min(group * LANES + lane, active - 1)]]) * stride


@inner
def put(sums, first, count, rows, group, active, mask, out):
    """Store a group's sums [tokens][16] to their neurons, and zeros to all neurons before them that
    no other group has; the last group's also to all after."""
    begin, end = group * LANES, min(group * LANES + LANES, active)
    before = rows[begin - 1] + 1 if group else 0
    behind = rows[end - 1] + 1 if end < active else out.shape[1]
    for t in range(count):
        token = first + t
        out[token, before:behind] = 0
        for lane in range(end - begin):
            neuron = rows[begin + lane]
            if mask[token, neuron]:
                out[token, neuron] = sums[t, lane]


@inner
def put_zeros(out, thread, n_threads):
    first, last = part(out.shape[1], thread, n_threads)
    out[:, first:last] = 0


def over_groups(
    format: str, blocking: Blocking, fill: Any, multiply: Callable[[int], Any], from_unit: Any
) -> Any:
    """The loops around `fill` and `multiply` of linear.product: (source, panel, weight, units,
    mask, rows, slots, active, along, out, thread, n_threads); from_unit(panel, n) is the panel from
    unit n on."""
    gather, step, unit_bytes = gather_units(format), PIECES[format].step, PIECES[format].unit_bytes
    units_at_once = BROUGHT // step // PIECES[format].units * PIECES[format].units
    scratch, most, tokens_at_once = units_at_once * step, blocking.size, blocking.tokens
    tiles, all_sums = blocking.tiles, blocking.tokens * LANES
    fill_all, multiply_all = filling(fill, tiles), in_tiles(multiply, tiles)

    @inner
    def run(source, panel, weight, units, mask, rows, slots, active, along, out, thread, n_threads):
        tokens, row_bytes = out.shape[0], units * unit_bytes
        where, bytes_ = (rows, slots, weight.shape[1]), weight.reshape(weight.size)
        starts, following = stack(np.int64, LANES), stack(np.int64, LANES)
        gathered = stack(np.uint8, scratch)
        sums = stack(np.float32, all_sums).reshape((tokens_at_once, LANES))
        begin, end = part((active + LANES - 1) // LANES, thread, n_threads)
        at_once = max(1, min(tokens_at_once, most // units))
        if begin == end:
            return
        for first in range(0, tokens, at_once):
            count = min(at_once, tokens - first)
            for unit in range(0, units, units_at_once):
                deep = min(units_at_once, units - unit)
                fill_all(count, (source, from_unit(panel, unit * count), first, unit, deep))
            for group in range(begin, end):
                begin_rows(where, group, active, starts)
                begin_rows(where, min(group + 1, end - 1), active, following)
                for unit in range(0, units, units_at_once):
                    deep = min(units_at_once, units - unit)
                    gather(bytes_, starts, following, row_bytes, unit, deep, gathered, along)
                    own = from_unit(panel, unit * count)
                    begins = sums, 0, 0, unit == 0
                    multiply_all(FIRST, count, (own, gathered, 0, deep, *begins, NEVER))
                put(sums, first, count, rows, group, active, mask, out)

    return run


def single(format: str, microkernel: Callable[[str, Any], Any]) -> Any:
    """One token and float weights: rows are multiplied in place, by `microkernel` of rows.py."""
    dot, unit_bytes = microkernel(format, linear_float.KINDS[format]), PIECES[format].unit_bytes

    @inner
    def run(x, weight, mask, rows, slots, active, along, out, thread, n_threads):
        row_bytes = x.shape[1] * unit_bytes
        where, bytes_ = (rows, slots, weight.shape[1]), weight.reshape(weight.size)
        starts, following = stack(np.int64, LANES), stack(np.int64, LANES)
        sums = stack(np.float32, LANES).reshape((1, LANES))
        begin, end = part((active + LANES - 1) // LANES, thread, n_threads)
        if begin == end:
            return
        begin_rows(where, begin, active, starts)
        for group in range(begin, end):
            begin_rows(where, min(group + 1, end - 1), active, following)
            store_vector(sums, 0, dot(bytes_, starts, following, row_bytes, x, along))
            put(sums, 0, 1, rows, group, active, mask, out)
            starts, following = following, starts

    return run


def float_kernel(
    microkernel: Callable[[str, Any], Any], blocking: Blocking, variant: str, format: str
) -> Callable[..., None]:
    load_weights = linear_float.widened(linear_float.KINDS[format])
    step, size = PIECES[format].step, blocking.size

    @njit(inline="always")
    def from_unit(panel, n):
        return (panel[0][n:],)

    one = single(format, microkernel)
    multiply = chains(load_weights, step, fma_outer)
    many = over_groups(format, fewer(blocking), linear_float.fill, multiply, from_unit)

    def kernel(args, thread, n_threads):
        x, weight, mask, rows, count, slots, tuning, out = arguments(args, FLOAT)
        active, along = count[0], tuning[0]
        if active == 0:
            put_zeros(out, thread, n_threads)
        elif x.shape[0] == 1:
            one(x, weight, mask, rows, slots, active, along, out, thread, n_threads)
        else:
            panel, units = (stack(np.float32, size),), x.shape[1]
            chosen = rows, slots, active, along
            many((x,), panel, weight, units, mask, *chosen, out, thread, n_threads)

    return named(kernel, variant)


def int8_kernel(microkernel: Microkernel, variant: str, format: str) -> Callable[..., None]:
    layout, factor = microkernel.layout(format), CODINGS[format].factor
    blocking = fewer(microkernel.blocking.over(layout.blocks))
    blocks, size = layout.blocks, blocking.size * layout.blocks
    words, extras_each = 8 * microkernel.words, linear_blocks.extras_of(microkernel, layout)
    all_words, all_scales, all_parts = linear_blocks.panel_sizes(microkernel, layout, size)
    extra = linear_blocks.extra_type(layout)

    @njit(inline="always")
    def from_unit(panel, n):
        q, scales, extras = panel
        return q[n * blocks * words :], scales[n:], extras[n * extras_each :]

    multiply = linear_blocks.multiply(microkernel, layout, factor)
    filling = linear_blocks.fill(microkernel, layout)
    many = over_groups(format, blocking, filling, multiply, from_unit)

    def kernel(args, thread, n_threads):
        q, scale, total, weight, mask, rows, count, slots, tuning, out = arguments(args, INT8)
        if count[0] == 0:
            put_zeros(out, thread, n_threads)
            return
        panel = stack(np.int32, all_words), stack(np.float32, all_scales), stack(extra, all_parts)
        source, units = (q, q.view(np.int32), scale, total), scale.shape[1] // blocks
        chosen = rows, slots, count[0], tuning[0]
        many(source, panel, weight, units, mask, *chosen, out, thread, n_threads)

    return named(kernel, variant)


def _shares(make: Any, how: Any, variant: str, signature: str, formats: Any) -> Mapping[str, Share]:
    return by_format(partial(make, how, variant), signature, {f: f for f in formats})


def fits(shape: Shape) -> bool:
    """Whether the panel of one token fits."""
    return shape["hidden"] <= 48 * 1024


AVX512 = Blocking((16, 8, 4, 2, 1), tokens=64, units=1024)
FLOATS, BLOCKS = linear_float.KINDS, [f for f in PIECES if f in LAYOUTS]
IN_PIECES, IN_LINES = partial(float_kernel, dot_units), partial(float_kernel, dot_in_lines)
GENERIC_FLOATS = _shares(IN_PIECES, linear_float.GENERIC, "generic", FLOAT, FLOATS)
AVX512_FLOATS = _shares(IN_LINES, AVX512, "avx512", FLOAT, FLOATS)
GENERIC_BLOCKS = _shares(int8_kernel, linear_int8.GENERIC, "generic", INT8, BLOCKS)
AVX2_BLOCKS = _shares(int8_kernel, linear_avx2.AVX2, "avx2", INT8, BLOCKS)
AVX512_VNNI_BLOCKS = _shares(int8_kernel, linear_int8.AVX512_VNNI, "avx512_vnni", INT8, BLOCKS)
