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

from kernels.cpu.formats.block_scales import beginning, unit_offset, unit_scale
from kernels.cpu.formats.decoding import CODINGS
from kernels.cpu.formats.layouts import BLOCK, LAYOUTS, Layout
from kernels.cpu.isa.simd import (
    Vector,
    convert,
    f32x16,
    i8x64,
    i32x16,
    in_pairs,
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
from kernels.cpu.linear.linear import (
    FIRST,
    LANES,
    ONE,
    Blocking,
    named,
    prefetch_outputs,
    prefetcher,
    product,
    two_at_once,
)
from kernels.cpu.linear.linear_pairs import WORDS
from kernels.cpu.linear.linear_superblocks import add_superblock, add_two_superblocks, pairs_of
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, arguments, by_format, part

SIGNATURE = (
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32],"
    " weight: u8[packed], tuning: i64[knobs] -> out: f32[tokens out]"
)

LEAST_IN_VECTORS = 4  # tokens of a tile whose panel is filled so


@dataclass(frozen=True, slots=True)
class Microkernel:
    """How a variant computes dots: `lanes` rows at once, from a panel of `words` per four
    activations, which put_word(panel, k, t, size, four) writes for word k of token t."""

    lanes: int
    words: int
    put_word: Any
    blocking: Blocking

    def layout(self, format: str) -> Layout:
        return LAYOUTS[format]

    def zero_point_correction(self, layout: Layout) -> int:
        """The factor of totals that are added to dots."""
        return -layout.zero_point

    def dots(self, layout: Layout) -> tuple[Any, ...]:
        """For each part of a block, (dots, weight, at, panel, offset, size) -> dots plus the
        part's; `at` is the block's first byte of these lanes."""
        raise NotImplementedError

    def scaled_dots(self, layout: Layout) -> tuple[Any, tuple[Any, ...]] | None:  # noqa: ARG002
        """(weight, at) -> the integers at byte `at` that multiply the dots of a superblock's part,
        and for each part of a block, (totals, integers, weight, at, panel, offset, size) -> totals
        plus the part's dots times its integers; None where dots are multiplied once summed."""
        return None

    def totals_in_pairs(self, layout: Layout) -> bool:
        """Whether pairs of parts' totals meet a superblock's pairs of integers: mins do, and so do
        scales where scaled dots leave the zero point to be subtracted at a superblock's end."""
        left = self.scaled_dots(layout) is not None and self.zero_point_correction(layout) != 0
        return layout.blocks > 1 and (layout.m or left)

    def dot_of_bytes(self) -> Any | None:
        """(sums, unsigned, signed) -> sums plus the dots of each lane's four bytes, used to fill
        panels in vectors, where the variant's panel is of plain words."""
        return None

    def pair(self, layout: Layout) -> tuple[Any, Any] | None:  # noqa: ARG002
        """linear_pairs.py's parameters for prompts in this layout, where that is faster."""
        return None


def add_block(microkernel: Microkernel, layout: Layout, prefetch_next: Any) -> Any:
    """(sums, d, m, weight, at, lane, (q, scale, extra), where, size, tuning) -> sums plus the block
    at byte `at`, which is at index `where` in the panel."""
    lanes, words, has_m = microkernel.lanes, 8 * microkernel.words, layout.m
    begin = beginning(layout, lanes, microkernel.zero_point_correction(layout) != 0)
    (dots_of,) = microkernel.dots(layout)

    @njit(inline="always")
    def add(sums, d, m, weight, at, lane, panel, where, size, tuning):
        prefetch_next(weight, at, tuning)
        q, scale, extra = panel
        dots = dots_of(begin(extra, where, size), weight, at + 4 * lane, q, where * words, size)
        sums = add_scaled(sums, dots, d, scale, where)
        return fma_outer(sums, m, extra, where) if has_m else sums

    return add


def add_unit(microkernel: Microkernel, layout: Layout, size: int) -> Any:
    """Add a unit with one float scale, a superblock or a block, for tiles of `size` tokens."""
    if layout.blocks > 1:
        return add_superblock(microkernel, layout, prefetcher(size, layout.block))
    return add_block(microkernel, layout, prefetcher(size, layout.step))


def add_two_units(microkernel: Microkernel, layout: Layout) -> Any:
    """The same for one token and two groups of rows: (sums, ds, ms, weight, ats, lane, panel,
    where, tuning) -> sums; all but the panel's values are tuples of two."""
    if layout.blocks > 1:
        return add_two_superblocks(microkernel, layout, prefetcher(1, layout.block))
    one = add_block(microkernel, layout, prefetcher(1, layout.step))

    @njit(inline="always")
    def add(sums, ds, ms, weight, ats, lane, panel, where, tuning):
        return (
            one(sums[0], ds[0], ms[0], weight, ats[0], lane, panel, where, 1, tuning),
            one(sums[1], ds[1], ms[1], weight, ats[1], lane, panel, where, 1, tuning),
        )

    return add


def multiply(microkernel: Microkernel, layout: Layout, factor: float) -> Callable[[int], Any]:
    """linear.product's `multiply`, one per tile size; `factor` scales the weight's d."""
    lanes, step, scales = microkernel.lanes, layout.step, layout.blocks * layout.block
    floats = Vector("f32", lanes)
    scale, offset = unit_scale(layout, lanes, factor), unit_offset(layout, lanes)

    @cache
    def of_size(size: int) -> Any:
        add = add_unit(microkernel, layout, size)

        @inner
        def tile(token, arguments):
            panel, weight, at, depth, out, first, row, begin, tuning = arguments
            prefetch_outputs(out, first + token + size, size, row)
            for lane in range(0, LANES, lanes):
                valid = min(lanes, out.shape[1] - row - lane)
                sums = zeros(floats, size)
                if not begin:
                    sums = load_tile(sums, out, first + token, row + lane, valid)
                for u in range(depth):
                    base = at + u * step
                    d = scale(weight, base + scales + 2 * lane)
                    m = offset(weight, base + scales + 2 * (LANES + lane))
                    where = token * depth + u * size
                    sums = add(sums, d, m, weight, base, lane, panel, where, size, tuning)
                store_tile(sums, out, first + token, row + lane, valid)

        return tile

    return of_size


def single(microkernel: Microkernel, layout: Layout, factor: float) -> Any:
    """(panel, weight, units, out, tuning, thread, n_threads): one token, whose panel spans all of
    hidden. As in linear_float.single, two groups of rows at once."""
    lanes, step, scales = microkernel.lanes, layout.step, layout.blocks * layout.block
    floats, add = Vector("f32", lanes), add_two_units(microkernel, layout)
    scale, offset = unit_scale(layout, lanes, factor), unit_offset(layout, lanes)

    @inner
    def run(panel, weight, units, out, tuning, thread, n_threads):
        width = out.shape[1]
        begin, end = part((width + LANES - 1) // LANES, thread, n_threads)
        times, step_of_two, apart = two_at_once(begin, end, tuning)
        for i in range(times):
            group = begin + i * step_of_two
            other = min(group + apart, end - 1)
            for lane in range(0, LANES, lanes):
                a, b = zeros(floats, 1), zeros(floats, 1)
                for u in range(units):
                    at, beside = (group * units + u) * step, (other * units + u) * step
                    d = scale(weight, at + scales + 2 * lane)
                    e = scale(weight, beside + scales + 2 * lane)
                    m = offset(weight, at + scales + 2 * (LANES + lane))
                    n = offset(weight, beside + scales + 2 * (LANES + lane))
                    ats = at, beside
                    a, b = add((a, b), (d, e), (m, n), weight, ats, lane, panel, u, tuning)
                row, row_beside = group * LANES + lane, other * LANES + lane
                store_tile(a, out, 0, row, min(lanes, width - row))
                store_tile(b, out, 0, row_beside, min(lanes, width - row_beside))

    return run


def spreading(microkernel: Microkernel) -> Any:
    """(row, begin, count, target, size, t): write so many words of a row's activations to a panel's
    tile of `size` tokens, as token t."""
    put_word = microkernel.put_word

    @njit(inline="always")
    def spread(row, begin, count, target, size, t):
        for k in range(count):
            put_word(target, k, t, size, row[begin + k])

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


def packing_totals(microkernel: Microkernel, layout: Layout) -> Any:
    """(source, row, block, count, scales, extras, begin, size, t): write scales and totals of so
    many blocks of token t of a tile, whose blocks begin at index `begin`."""
    parts, correction, has_m = layout.parts, microkernel.zero_point_correction(layout), layout.m
    blocks, sum_of = layout.blocks, total_of(layout)
    in_pairs = microkernel.totals_in_pairs(layout)
    alone, pairs = (0, pairs_of(layout)) if in_pairs else (blocks * parts, 0)

    @njit(inline="always")
    def of_blocks(source, row, block, count, scales, extras, begin, size, t):
        _, _, scale, total = source
        for b in range(count):
            at = begin + b * size + t
            scales[at] = scale[row, block + b]
            if has_m:
                extras[at] = scale[row, block + b] * np.float32(total[row, block + b])
            else:
                extras[at] = correction * total[row, block + b]

    @njit(inline="always")
    def of_superblocks(source, row, block, count, scales, extras, begin, size, t):
        q, _, scale, total = source
        for u in range(count // blocks):
            first, place = block + u * blocks, begin // blocks + u * size
            scales[place + t] = scale[row, first]
            for p in range(alone):
                found = sum_of(q, total, row, first + p // parts, p % parts)
                extras[(place * blocks * parts) + p * size + t] = correction * found
            for p in range(pairs):
                low = sum_of(q, total, row, first + 2 * p // parts, 2 * p % parts)
                high = sum_of(q, total, row, first + (2 * p + 1) // parts, (2 * p + 1) % parts)
                extras[place * pairs + p * size + t] = (low & 0xFFFF) | (high << 16)

    return of_superblocks if blocks > 1 else of_blocks


def fill(microkernel: Microkernel, layout: Layout) -> Any:
    words, blocks = microkernel.words, layout.blocks
    spread, pack_totals = spreading(microkernel), packing_totals(microkernel, layout)

    @inner
    def fill_tile(token, size, arguments):
        source, (panel, scales, extras), first, unit, depth = arguments
        block, count = unit * blocks, depth * blocks
        begin = token * count
        target = panel[begin * 8 * words :]
        for t in range(size):
            row = first + token + t
            pack_totals(source, row, block, count, scales, extras, begin, size, t)
            spread(source[1][row], 8 * block, 8 * count, target, size, t)

    dot = microkernel.dot_of_bytes()
    return (
        in_vectors(layout, microkernel.zero_point_correction(layout), dot, fill_tile)
        if dot
        else fill_tile
    )


def in_vectors(layout: Layout, correction: int, dot: Any, fill_few: Any) -> Any:
    """`fill` with the tokens of a tile side by side in a vector, for panels of plain words: sixteen
    words of each token are transposed at a time, and totals are dots with ones. Vectors are stored
    whole, each overwriting the surplus of the one before."""
    per_unit, has_m, width = layout.blocks, layout.m, WORDS
    parts, of_blocks, each = layout.parts, layout.blocks == 1, WORDS // layout.parts
    ones, pairs = 1 if has_m else -correction, pairs_of(layout)

    @njit(inline="always")
    def total(panel, target, part, size):
        found = zero(i32x16)
        for w in range(part * each, part * each + each):
            found = dot(found, splat(i8x64, ones), load(i8x64, panel, target + w * size))
        return found

    @njit(inline="always")
    def pack_totals(panel, target, scales, extras, begin, count, size):
        for b in range(count if of_blocks and has_m else 0):
            place = begin + b * size
            found = convert(f32x16, total(panel, target, b, size))
            store(extras, place, mul(load(f32x16, scales, place), found))
        for p in range(0 if has_m else count * parts):
            found = total(panel, target, p, size)
            store(extras, begin * parts + p * size, less(zero(i32x16), found))
        for pair in range(0 if of_blocks or not has_m else count // per_unit * pairs):
            low = total(panel, target, 2 * pair, size)
            high = total(panel, target, 2 * pair + 1, size)
            store(extras, begin // per_unit * pairs + pair * size, in_pairs(low, high))

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
        for b in range(0, of_scales if of_blocks else 0, LANES):
            at = row * blocks + block + b
            transpose_first(scale, at, blocks, size, scales, begin + b * size)
        for b in range(of_scales if of_blocks else 0, count, per_unit):
            for t in range(size):
                scales[(begin + b * size) // per_unit + t] = scale[row + t, block + b]
        pack_totals(panel, target, scales, extras, begin, count, size)

    return fill_tile


def panel_sizes(microkernel: Microkernel, layout: Layout, size: int) -> tuple[int, int, int]:
    """Words, scales and extras of a panel of so many blocks, and a spare vector for `fill`."""
    return 8 * microkernel.words * size + LANES, size + LANES, layout.parts * size + LANES


def extras_of(microkernel: Microkernel, layout: Layout) -> int:
    """Extras of a unit of a token."""
    in_pairs = microkernel.totals_in_pairs(layout)
    return pairs_of(layout) if in_pairs else layout.blocks * layout.parts


def extra_type(layout: Layout) -> Any:
    """Totals are integers, except those of a block that are scaled for an offset."""
    return np.float32 if layout.m and layout.blocks == 1 else np.int32


def int8_kernel(microkernel: Microkernel, variant: str, format: str) -> Callable[..., None]:
    layout, factor = microkernel.layout(format), CODINGS[format].factor
    blocks, step = layout.blocks, layout.step
    blocking, size = microkernel.blocking.over(blocks), microkernel.blocking.size
    tile = fill(microkernel, layout), multiply(microkernel, layout, factor)
    many = product(blocking, *tile)
    if pair := microkernel.pair(layout):
        many, size = linear_pairs.for_prompts(many, layout, factor, pair, *tile)
    words, scales, extras = panel_sizes(microkernel, layout, size)
    extra = extra_type(layout)
    fill_one, one, most = tile[0], single(microkernel, layout, factor), size // blocks

    def kernel(args, thread, n_threads):
        q, scale, total, weight, tuning, out = arguments(args, SIGNATURE)
        panel = stack(np.int32, words), stack(np.float32, scales), stack(extra, extras)
        source = q, q.view(np.int32), scale, total
        units = scale.shape[1] // blocks
        if out.shape[0] == 1 and units <= most:
            fill_one(FIRST, ONE, (source, panel, 0, 0, units))
            one(panel, weight, units, out, tuning, thread, n_threads)
            return
        many(source, panel, weight, step, units, out, tuning, thread, n_threads)

    return named(kernel, variant)


def shares(microkernel: Microkernel, variant: str, formats: Iterable[str]) -> dict[str, Share]:
    """Formats that are packed alike share one."""
    kinds = {f: (microkernel.layout(f), CODINGS[f].factor) for f in formats}
    first = {kind: f for f, kind in reversed(kinds.items())}
    tags = {f: f for f in first.values()}
    made = by_format(partial(int8_kernel, microkernel, variant), SIGNATURE, tags)
    return {f: made[first[kind]] for f, kind in kinds.items()}
