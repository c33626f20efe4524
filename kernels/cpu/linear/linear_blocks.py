"""The loops of linear for block formats and int8 activations, whatever makes the dots.

Weights are codes that are not negative (layouts.py); where they were raised for that, the
activations' total takes it off again. Dots inside a part are exact integers, so the variants agree
bit for bit: they differ in how four bytes of each row meet four activations (linear_int8.py,
linear_lut.py).

A panel holds, for each block of 32, what the variant lays for four activations of each token of
the tile, the scale of each token, and for each part the raised total of each token or, where
weights have an offset, what that multiplies: the total times the scale.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.formats.block_scales import beginning, scales_of, unit_offset, unit_scale
from kernels.cpu.formats.decoding import CODINGS
from kernels.cpu.formats.layouts import BLOCK, LAYOUTS, Layout
from kernels.cpu.isa.simd import (
    Vector,
    convert,
    f32x16,
    i8x64,
    i32x16,
    less,
    load,
    mul,
    splat,
    store,
    zero,
)
from kernels.cpu.isa.simd_shuffle import stack, transpose_first
from kernels.cpu.isa.tiles import add_scaled, fma_outer, load_tile, store_tile, zeros
from kernels.cpu.linear import linear_pairs
from kernels.cpu.linear.linear import FIRST, LANES, Blocking, asking, named, product
from kernels.cpu.linear.linear_pairs import WORDS
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, by_format, part

SIGNATURE = (
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32],"
    " weight: u8[packed], tuning: i64[knobs] -> out: f32[tokens out]"
)

LEAST_IN_VECTORS = 4  # tokens of a tile whose panel is filled so


@dataclass(frozen=True, slots=True)
class Meeting:
    """How a variant makes dots: `lanes` rows at once, from a panel of `words` for four activations,
    which lay(panel, k, t, size, four) puts there for word k of token t."""

    lanes: int
    words: int
    lay: Any
    blocking: Blocking

    def layout(self, format: str) -> Layout:
        return LAYOUTS[format]

    def taken_off(self, layout: Layout) -> int:
        """By what totals are multiplied before dots are added to them."""
        return -layout.raised

    def dots(self, layout: Layout) -> tuple[Any, ...]:
        """For each part of a block, (dots, weight, at, panel, offset, size) -> dots with the part's
        added; `at` is the block's first byte of these lanes."""
        raise NotImplementedError

    def dot_of_bytes(self) -> Any | None:
        """(sums, unsigned, signed) -> sums with the dots of each lane's four bytes, by which panels
        are filled in vectors, where the variant lays words as they are."""
        return None

    def pair(self, layout: Layout) -> tuple[Any, Any] | None:  # noqa: ARG002
        """What linear_pairs.py needs for prompts in this layout, where that is faster."""
        return None


def offsets_of(layout: Layout, lanes: int) -> Any:
    """(sums, m, weight, at, met, where, size) -> sums with a block's offsets added, each part's
    times what it meets."""
    two_parts, (_, floor_of) = layout.parts == 2, scales_of(layout, lanes)

    @njit(inline="always")
    def nothing(sums, m, weight, at, met, where, size):
        return sums

    @njit(inline="always")
    def lift(sums, m, weight, at, met, where, size):
        sums = fma_outer(sums, floor_of(m, weight, at), met, where)
        if two_parts:
            sums = fma_outer(sums, floor_of(m, weight, at + LANES), met, where + size)
        return sums

    return lift if layout.m else nothing


def add_block(meeting: Meeting, layout: Layout) -> Any:
    """(sums, d, m, weight, at, lane, (q, scale, extra), where, size) -> sums with a block added."""
    lanes, words, parts = meeting.lanes, 8 * meeting.words, layout.parts
    payload, two_parts = layout.payload, layout.parts == 2
    begin = beginning(layout, lanes, meeting.taken_off(layout) != 0)
    lift = offsets_of(layout, lanes)
    scale_of, _ = scales_of(layout, lanes)
    dots_of = meeting.dots(layout)
    first, last = dots_of[0], dots_of[-1]

    @njit(inline="always")
    def add(sums, d, m, weight, at, lane, panel, where, size):
        q, scale, extra = panel
        own, codes = at + payload + lane, at + 4 * lane
        own_last, total = own, where * parts
        if two_parts:
            dots = begin(extra, total, size)
            dots = first(dots, weight, codes, q, where * words, size)
            sums = add_scaled(sums, dots, scale_of(d, weight, own), scale, where)
            own_last, total = own + LANES, total + size
        dots = last(begin(extra, total, size), weight, codes, q, where * words, size)
        sums = add_scaled(sums, dots, scale_of(d, weight, own_last), scale, where)
        return lift(sums, m, weight, own, extra, where * parts, size)

    return add


def multiply(meeting: Meeting, layout: Layout, factor: float) -> Callable[[int], Any]:
    """Of linear.product, a tile of each size made once; `factor` multiplies the weight's d."""
    lanes, blocks, step, block_step = meeting.lanes, layout.blocks, layout.step, layout.block
    floats, scales = Vector("f32", lanes), blocks * block_step
    add, offset = add_block(meeting, layout), unit_offset(layout, lanes)
    scale = unit_scale(layout, lanes, factor)

    @cache
    def of_size(size: int) -> Any:
        ask = asking(size, block_step if blocks > 1 else step)

        @inner
        def tile(token, arguments):
            panel, weight, at, depth, out, first, row, begin, tuning = arguments
            for lane in range(0, LANES, lanes):
                valid = min(lanes, out.shape[1] - row - lane)
                sums = zeros(floats, size)
                if not begin:
                    sums = load_tile(sums, out, first + token, row + lane, valid)
                for u in range(depth):
                    base = at + u * step
                    d = scale(weight, base + scales + 2 * lane)
                    m = offset(weight, base + scales + 2 * (LANES + lane))
                    for b in range(blocks):
                        ask(weight, base + b * block_step, tuning)
                        where = (token * depth + u * size) * blocks + b * size
                        sums = add(
                            sums, d, m, weight, base + b * block_step, lane, panel, where, size
                        )
                store_tile(sums, out, first + token, row + lane, valid)

        return tile

    return of_size


def single(meeting: Meeting, layout: Layout, factor: float) -> Any:
    """(panel, weight, units, out, tuning, thread, n_threads): one token, whose panel is all of
    hidden. As linear_float.single, two groups of rows at once, of the two halves of a thread's:
    two long streams of weights come faster from memory than one."""
    lanes, blocks, step, block_step = meeting.lanes, layout.blocks, layout.step, layout.block
    floats, scales = Vector("f32", lanes), blocks * block_step
    add, offset = add_block(meeting, layout), unit_offset(layout, lanes)
    scale = unit_scale(layout, lanes, factor)
    ask = asking(1, block_step if blocks > 1 else step)

    @inner
    def run(panel, weight, units, out, tuning, thread, n_threads):
        width = out.shape[1]
        begin, end = part((width + LANES - 1) // LANES, thread, n_threads)
        middle = begin + (end - begin + 1) // 2
        for group in range(begin, middle):
            other = min(middle + group - begin, end - 1)
            for lane in range(0, LANES, lanes):
                a, b = zeros(floats, 1), zeros(floats, 1)
                for u in range(units):
                    at, beside = (group * units + u) * step, (other * units + u) * step
                    d = scale(weight, at + scales + 2 * lane)
                    e = scale(weight, beside + scales + 2 * lane)
                    m = offset(weight, at + scales + 2 * (LANES + lane))
                    n = offset(weight, beside + scales + 2 * (LANES + lane))
                    for k in range(blocks):
                        block, where = k * block_step, u * blocks + k
                        ask(weight, at + block, tuning)
                        ask(weight, beside + block, tuning)
                        a = add(a, d, m, weight, at + block, lane, panel, where, 1)
                        b = add(b, e, n, weight, beside + block, lane, panel, where, 1)
                row, row_beside = group * LANES + lane, other * LANES + lane
                store_tile(a, out, 0, row, min(lanes, width - row))
                store_tile(b, out, 0, row_beside, min(lanes, width - row_beside))

    return run


def spreading(meeting: Meeting) -> Any:
    """(row, begin, count, target, size, t): so many words of a row's activations into a panel's
    tile of `size` tokens, of which it is number t."""
    lay = meeting.lay

    @njit(inline="always")
    def spread(row, begin, count, target, size, t):
        for k in range(count):
            lay(target, k, t, size, row[begin + k])

    return spread


def total_of(layout: Layout) -> Any:
    """(q, total, row, block, part) -> the sum of a part's activations."""
    parts, width = layout.parts, BLOCK // layout.parts

    @njit(inline="always")
    def whole(q, total, row, block, part):
        return total[row, block]

    @njit(inline="always")
    def added(q, total, row, block, part):
        found = np.int32(0)
        for j in range(block * BLOCK + part * width, block * BLOCK + part * width + width):
            found += q[row, j]
        return found

    return whole if parts == 1 else added


def fill(meeting: Meeting, layout: Layout) -> Any:
    words, blocks, parts = meeting.words, layout.blocks, layout.parts
    taken_off, has_m, sum_of = meeting.taken_off(layout), layout.m, total_of(layout)
    spread = spreading(meeting)

    @inner
    def fill_tile(token, size, arguments):
        (q, word, scale, total), (panel, scales, extras), first, unit, depth = arguments
        block, count = unit * blocks, depth * blocks
        begin = token * count
        target = panel[begin * 8 * words :]
        for t in range(size):
            row = first + token + t
            for b in range(count):
                scales[begin + b * size + t] = scale[row, block + b]
                for p in range(parts):
                    found = sum_of(q, total, row, block + b, p)
                    at = (begin + b * size) * parts + p * size + t
                    if has_m:
                        extras[at] = scale[row, block + b] * np.float32(found)
                    else:
                        extras[at] = taken_off * found
            spread(word[row], 8 * block, 8 * count, target, size, t)

    dot = meeting.dot_of_bytes()
    return in_vectors(layout, taken_off, dot, fill_tile) if dot else fill_tile


def in_vectors(layout: Layout, taken_off: int, dot: Any, fill_few: Any) -> Any:
    """`fill` with the tokens of a tile side by side in a vector, where words are laid as they are:
    sixteen of each token are transposed at a time, and totals are dots of what is laid with ones.
    Vectors are stored whole, each over what the one before it has beyond the tile."""
    per_unit, parts, has_m, width = layout.blocks, layout.parts, layout.m, WORDS
    each, ones = WORDS // layout.parts, 1 if layout.m else -taken_off

    @inner
    def fill_tile(token, size, arguments):
        if size < LEAST_IN_VECTORS:
            fill_few(token, size, arguments)
            return
        (_, word, scale, _), (panel, scales, extras), first, unit, depth = arguments
        block, count, row = unit * per_unit, depth * per_unit, first + token
        begin, hidden, blocks = token * count, word.shape[1], scale.shape[1]
        whole, of_scales = width * count // LANES * LANES, count // LANES * LANES
        target = begin * width
        for k in range(0, whole, LANES):
            at = row * hidden + width * block + k
            transpose_first(word, at, hidden, size, panel, target + k * size)
        for k in range(whole, width * count):
            for t in range(size):
                panel[target + k * size + t] = word[row + t, width * block + k]
        for b in range(0, of_scales, LANES):
            at = row * blocks + block + b
            transpose_first(scale, at, blocks, size, scales, begin + b * size)
        for b in range(of_scales, count):
            for t in range(size):
                scales[begin + b * size + t] = scale[row + t, block + b]
        for b in range(count):
            for p in range(parts):
                found, where = zero(i32x16), target + (b * width + p * each) * size
                for w in range(each):
                    found = dot(found, splat(i8x64, ones), load(i8x64, panel, where + w * size))
                place = (begin + b * size) * parts + p * size
                if has_m:
                    own = load(f32x16, scales, begin + b * size)
                    store(extras, place, mul(own, convert(f32x16, found)))
                else:
                    store(extras, place, less(zero(i32x16), found))

    return fill_tile


def panel_sizes(meeting: Meeting, layout: Layout, size: int) -> tuple[int, int, int]:
    """Words, scales and extras of a panel of so many blocks, and a vector beyond for `fill`."""
    return 8 * meeting.words * size + LANES, size + LANES, layout.parts * size + LANES


def int8_kernel(meeting: Meeting, variant: str, format: str) -> Callable[..., None]:
    layout, factor = meeting.layout(format), CODINGS[format].factor
    blocking = meeting.blocking.over(layout.blocks)
    blocks, step = layout.blocks, layout.step
    size = blocking.size * blocks
    tile = fill(meeting, layout), multiply(meeting, layout, factor)
    many = product(blocking, *tile)
    if pair := meeting.pair(layout):
        many, size = linear_pairs.for_prompts(many, layout, factor, pair, *tile)
    words, scales, extras = panel_sizes(meeting, layout, size)
    extra = np.float32 if layout.m else np.int32
    fill_one, one, most = tile[0], single(meeting, layout, factor), size // blocks

    def kernel(block, thread, n_threads):
        q, scale, total, weight, tuning, out = arguments(block, SIGNATURE)
        panel = stack(np.int32, words), stack(np.float32, scales), stack(extra, extras)
        source = q, q.view(np.int32), scale, total
        units = scale.shape[1] // blocks
        if out.shape[0] == 1 and units <= most:
            fill_one(FIRST, 1, (source, panel, 0, 0, units))
            one(panel, weight, units, out, tuning, thread, n_threads)
            return
        many(source, panel, weight, step, units, out, tuning, thread, n_threads)

    return named(kernel, variant)


def shares(meeting: Meeting, variant: str, formats: Iterable[str]) -> dict[str, Share]:
    """Formats that lie packed alike share one."""
    kinds = {f: (meeting.layout(f), CODINGS[f].factor) for f in formats}
    first = {kind: f for f, kind in reversed(kinds.items())}
    tags = {f: f for f in first.values()}
    made = by_format(partial(int8_kernel, meeting, variant), SIGNATURE, tags)
    return {f: made[first[kind]] for f, kind in kinds.items()}
