"""linear for Q8_0 and Q4_0 weights and int8 activations: `generic`, `avx2` and `avx512_vnni`.

Weights are raised to unsigned bytes (by 128, or as nibbles are stored, by 8), since vector units
multiply unsigned by signed; the activations' total takes that off again. Dots inside a block are
exact integers, so the variants agree bit for bit: they differ in how four bytes of each row meet
four activations.

Packed layout, a group of 16 rows after the other: [blocks] of [payload / 4][16 lanes][4 bytes],
then 16 float16 scales. A panel holds, for each block, [words][tokens of the tile] words of
activations, and the scale and the raised total of each token.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from kernels.cpu.linear import AHEAD, LANES, Blocking, named, product
from kernels.cpu.share import Share, arguments, by_format
from kernels.cpu.simd import (
    CACHE_LINE,
    Vector,
    convert,
    dot_pairs,
    even_bytes,
    high_nibbles,
    load,
    low_nibbles,
    odd_bytes,
    prefetch,
)
from kernels.cpu.simd_shuffle import stack
from kernels.cpu.simd_x86 import dot4, dot4_of_signed, dot4_of_small, to_unsigned
from kernels.cpu.tiles import add_scaled, load_tile, outer, splats, store_tile, zeros

SIGNATURE = (
    "q: i8[tokens hidden], scale: f32[tokens hidden/32], total: i32[tokens hidden/32],"
    " weight: u8[packed] -> out: f32[tokens out]"
)
PAYLOAD = {"Q8_0": 32, "Q4_0": 16}  # bytes of a block without its scale
RAISED = {"Q8_0": 128, "Q4_0": 8}

four_bytes, four_signed, four_small = outer(dot4), outer(dot4_of_signed), outer(dot4_of_small)
two_halves = outer(dot_pairs)


@njit(inline="always")
def even_halves(word):
    """Bytes 0 and 2 of a word of activations as two int16."""
    return (np.int8(word) & 0xFFFF) | (np.int8(word >> 16) << 16)


@njit(inline="always")
def odd_halves(word):
    """Bytes 1 and 3 of a word of activations as two int16."""
    return (np.int8(word >> 8) & 0xFFFF) | (np.int8(word >> 24) << 16)


@dataclass(frozen=True, slots=True)
class Meeting:
    """How a variant multiplies bytes: `lanes` rows at once, `words` of activations for four bytes,
    and by format what makes (dots, weights, panel, offset, size) -> dots for four bytes a row.

    `signed` formats have their weights lowered again before they meet, so no total is taken off.
    """

    lanes: int
    words: int
    four: dict[str, Any]
    blocking: Blocking
    signed: frozenset[str] = frozenset()


@njit(inline="always")
def by_pairs(dots, w, q, at, size):
    dots = two_halves(dots, even_bytes(w), q, at)
    return two_halves(dots, odd_bytes(w), q, at + size)


@njit(inline="always")
def by_small(dots, w, q, at, size):
    return four_small(dots, w, q, at)


@njit(inline="always")
def by_signed(dots, w, q, at, size):
    return four_signed(dots, to_unsigned(w), q, at)  # flips the same bit back


@njit(inline="always")
def by_bytes(dots, w, q, at, size):
    return four_bytes(dots, w, q, at)


GENERIC = Meeting(8, 2, dict.fromkeys(PAYLOAD, by_pairs), Blocking((6, 4, 2, 1), 48, 64))
AVX2 = Meeting(
    8,
    1,
    {"Q8_0": by_signed, "Q4_0": by_small},
    Blocking((6, 4, 2, 1), 48, 64),
    frozenset({"Q8_0"}),
)
AVX512_VNNI = Meeting(16, 1, dict.fromkeys(PAYLOAD, by_bytes), Blocking((12, 8, 4, 2, 1), 48, 64))


def block_of(meeting: Meeting, format: str) -> Any:
    """(dots, weight, at, q, where, size) -> dots of a block of 32, four bytes a row at a time."""
    four, words = meeting.four[format], meeting.words
    bytes_ = Vector("i8", 4 * meeting.lanes)

    @njit(inline="always")
    def of_bytes(dots, weight, at, q, where, size):
        for c in range(8):
            w = load(bytes_, weight, at + 4 * LANES * c)
            dots = four(dots, w, q, where + words * c * size, size)
        return dots

    @njit(inline="always")
    def of_nibbles(dots, weight, at, q, where, size):
        for c in range(4):
            w = load(bytes_, weight, at + 4 * LANES * c)
            dots = four(dots, low_nibbles(w), q, where + words * c * size, size)
            dots = four(dots, high_nibbles(w), q, where + words * (c + 4) * size, size)
        return dots

    return of_bytes if format == "Q8_0" else of_nibbles


def multiply(meeting: Meeting, format: str) -> Callable[[int], Any]:
    lanes, words = meeting.lanes, 8 * meeting.words
    payload, step = LANES * PAYLOAD[format], LANES * (PAYLOAD[format] + 2)
    floats, halves, integers = (Vector(e, lanes) for e in ("f32", "f16", "i32"))
    block = block_of(meeting, format)

    def of_size(size: int) -> Any:
        @njit
        def tile(token, arguments):
            (q, scale, total), weight, at, depth, out, first, row, begin = arguments
            for lane in range(0, LANES, lanes):
                valid = min(lanes, out.shape[1] - row - lane)
                sums = zeros(floats, size)
                if not begin:
                    sums = load_tile(sums, out, first + token, row + lane, valid)
                for b in range(depth):
                    base, where = at + b * step, token * depth + b * size
                    w = convert(floats, load(halves, weight, base + payload + 2 * lane))
                    if size > 1:
                        for line in range(AHEAD, AHEAD + step, CACHE_LINE):
                            prefetch(weight, base + line, 3)
                    dots = splats(integers, size, total, where)
                    dots = block(dots, weight, base + 4 * lane, q, where * words, size)
                    sums = add_scaled(sums, dots, w, scale, where)
                store_tile(sums, out, first + token, row + lane, valid)

        return tile

    return of_size


def fill(meeting: Meeting, format: str) -> Any:
    words = meeting.words
    taken_off = 0 if format in meeting.signed else -RAISED[format]

    @njit
    def fill_tile(token, size, arguments):
        (q, scale, total), (panel, scales, totals), first, block, depth = arguments
        begin = token * depth
        target = panel[begin * 8 * words :]
        for t in range(size):
            row = first + token + t
            for b in range(depth):
                scales[begin + b * size + t] = scale[row, block + b]
                totals[begin + b * size + t] = taken_off * total[row, block + b]
            for k in range(8 * depth):
                word = q[row, 8 * block + k]
                if words == 1:
                    target[k * size + t] = word
                else:
                    target[2 * k * size + t] = even_halves(word)
                    target[(2 * k + 1) * size + t] = odd_halves(word)

    return fill_tile


def int8_kernel(meeting: Meeting, variant: str, format: str) -> Callable[..., None]:
    size, words = meeting.blocking.size, 8 * meeting.words * meeting.blocking.size
    step = LANES * (PAYLOAD[format] + 2)
    many = product(meeting.blocking, fill(meeting, format), multiply(meeting, format))

    def kernel(block, thread, n_threads):
        q, scale, total, weight, out = arguments(block, SIGNATURE)
        panel = stack(np.int32, words), stack(np.float32, size), stack(np.int32, size)
        source = q.view(np.int32), scale, total
        many(source, panel, weight, step, scale.shape[1], out, thread, n_threads)

    return named(kernel, variant)


def shares(meeting: Meeting, variant: str) -> dict[str, Share]:
    return by_format(partial(int8_kernel, meeting, variant), SIGNATURE, {f: f for f in PAYLOAD})


GENERIC_SHARES = shares(GENERIC, "generic")
AVX2_SHARES = shares(AVX2, "avx2")
AVX512_VNNI_SHARES = shares(AVX512_VNNI, "avx512_vnni")
