"""Weights as the kernels stream them: 16 rows together, one row a lane (layouts: linear_float.py,
layouts.py, linear_lut.py and linear_bf16.py). Groups of rows are shared among threads."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import types
from numpy.typing import DTypeLike

from kernels.cpu.formats.decoding import CODINGS, TAGS, code_at, element
from kernels.cpu.formats.layouts import BLOCK, LAYOUTS, WORD_ROWS, Layout
from kernels.cpu.isa.simd import CACHE_LINE, bf16x1, convert, f16x1, f32x1, load, splat, store
from kernels.cpu.linear import linear_lut
from kernels.cpu.linear.linear import LANES
from kernels.cpu.linear.linear_bf16 import PADDED
from kernels.cpu.runtime.closures import inner
from kernels.cpu.runtime.share import Share, Words, arguments, pack_words, part
from reference.formats import FORMATS

Array = np.ndarray[Any, np.dtype[Any]]
TILE = 128

WORDS8 = "weight: u8[rows hidden] -> out: u8[packed]"
WORDS16 = "weight: u16[rows hidden] -> out: u16[packed]"
WORDS32 = "weight: u32[rows hidden] -> out: u32[packed]"
BLOCKS = "weight: u8[rows row_bytes] -> out: u8[packed]"
APART = "weight: u8[rows row_bytes] -> out: u8[rows stride]"


def words_packer(signature: str) -> Callable[..., None]:
    """[groups][hidden][16] elements, in tiles so that both sides of the transposition stay in
    cache; rows beyond the last are zero."""

    def pack(args, thread, n_threads):
        weight, out = arguments(args, signature)
        rows, hidden = weight.shape
        first, last = part((rows + LANES - 1) // LANES, thread, n_threads)
        for group in range(first, last):
            valid = min(LANES, rows - group * LANES)
            for tile in range(0, hidden, TILE):
                width = min(TILE, hidden - tile)
                target = out[(group * hidden + tile) * LANES :]
                for lane in range(valid):
                    source = weight[group * LANES + lane, tile:]
                    for k in range(width):
                        target[k * LANES + lane] = source[k]
                for lane in range(valid, LANES):
                    for k in range(width):
                        target[k * LANES + lane] = 0

    return pack


def rows_copier(args, thread, n_threads):
    """Rows as in the file, with padding: see Packing.apart."""
    weight, out = arguments(args, APART)
    rows, row_bytes = weight.shape
    first, last = part(rows, thread, n_threads)
    for row in range(first, last):
        for i in range(row_bytes):  # a slice of another's would have to be of its size
            out[row, i] = weight[row, i]
        out[row, row_bytes:] = 0


def words_of(layout: Layout) -> Any:
    """(out, at, lane, c, codes): put the four codes of word c into the planes of the block at byte
    `at` of `out`."""
    planes = layout.planes

    @inner
    def put(out, at, lane, c, codes):
        word, low = at, 0
        for bits in planes:
            target = word + WORD_ROWS * (c % bits) + 4 * lane
            each = np.uint32(((1 << bits) - 1) * 0x01010101)
            taken = (codes >> np.uint32(low) & each) << np.uint32(bits * (c // bits))
            before = load(types.uint32, out, target) if c >= bits else np.uint32(0)
            store(out, target, np.uint32(before | taken))
            word, low = word + WORD_ROWS * bits, low + bits

    return put


def nibbles_of(layout: Layout, rows_apart: bool) -> Any:
    """The same for linear_lut.py's planes: bit i of each of the four codes forms a nibble."""
    planes = tuple((p.bits, p.lowest, p.chunk) for p in linear_lut.planes_of(layout))

    @inner
    def put(out, at, lane, c, codes):
        for bits, lowest, chunk in planes:
            together = 4 // bits  # groups of four elements in a step of lookups
            step, rows = c // together, LANES // together if rows_apart else 1
            begin = (lane // rows * together + c % together) * rows + lane % rows
            begin = at + WORD_ROWS * (chunk + step // 2) + begin * bits
            for i in range(bits):
                nibble = np.int64(0)
                for b in range(4):
                    bit = codes >> np.uint32(8 * b + lowest + i) & np.uint32(1)
                    nibble |= np.int64(bit) << b
                before = out[begin + i] if step % 2 else 0
                out[begin + i] = before | nibble << 4 * (step % 2)

    return put


def blocks_packer(
    format: str, layout: Layout, putting: Callable[[Layout], Any]
) -> Callable[..., None]:
    """[groups][units] in the layout of layouts.py; the last row is repeated beyond the end."""
    coding, elements, size = CODINGS[format], FORMATS[format].block, FORMATS[format].block_bytes
    code_of = code_at(coding.integer, layout.table, layout.zero_point)
    part_of, min_of = coding.parts_at()
    copied, d_of, d, m = coding.scale is None, coding.d_at(), coding.d, coding.m or 0
    step, block_step, payload = layout.step, layout.block, layout.payload
    blocks, parts, put = layout.blocks, layout.parts, putting(layout)
    integers, mins, packed = layout.integer_scales, layout.mins, layout.packed_scales
    has_m, half = layout.m, bf16x1 if layout.bfloat16 else f16x1
    per_unit = blocks * BLOCK // elements  # blocks of the file's format

    @inner
    def pack_codes(data, base, first, out, at, lane):
        for c in range(8):
            codes = np.uint32(0)
            for b in range(4):
                codes |= np.uint32(code_of(data, base, first + 4 * c + b)) << np.uint32(8 * b)
            put(out, at, lane, c, codes)

    def pack(args, thread, n_threads):
        weight, out = arguments(args, BLOCKS)
        rows, row_bytes = weight.shape
        units = row_bytes // size // per_unit
        first, last = part((rows + LANES - 1) // LANES, thread, n_threads)
        for group in range(first, last):
            for u in range(units):
                unit = (group * units + u) * step
                for lane in range(LANES):
                    data = weight[min(group * LANES + lane, rows - 1)]
                    base, end = u * per_unit * size, unit + blocks * block_step + 2 * lane
                    for b in range(blocks):
                        at = unit + b * block_step
                        pack_codes(data, base, b * BLOCK, out, at, lane)
                        for p in range(parts):
                            j = b * BLOCK + p * (BLOCK // parts)
                            where = at + payload + LANES * p + lane
                            if integers:
                                own = part_of(data, base, j)
                                if packed:
                                    own |= min_of(data, base, j) << 4
                                out[where] = own & 255
                            if mins and not packed:
                                out[where + LANES * parts] = min_of(data, base, j)
                    if copied:
                        store(out, end, load(types.uint16, data, base + d))
                    else:
                        store(out, end, convert(half, splat(f32x1, d_of(data, base, 0))))
                    if has_m:
                        store(out, end + 2 * LANES, load(types.uint16, data, base + m))

    return pack


def pairs_packer(format: str) -> Callable[..., None]:
    """[groups][pairs][16 lanes][2] bfloat16, round to nearest; zeros beyond rows, and beyond hidden
    up to a multiple of PADDED."""
    tag, element_bytes = TAGS[format], FORMATS[format].block_bytes

    def pack(args, thread, n_threads):
        weight, out = arguments(args, BLOCKS)
        rows, hidden = weight.shape[0], weight.shape[1] // element_bytes
        width = (hidden + PADDED - 1) // PADDED * PADDED
        first, last = part((rows + LANES - 1) // LANES, thread, n_threads)
        for group in range(first, last):
            for lane in range(LANES):
                row = group * LANES + lane
                for k in range(width):
                    at = (group * width + k // 2 * 2) * LANES + 2 * lane + k % 2
                    value = np.float32(0)
                    if row < rows and k < hidden:
                        value = element(tag, weight[row], k)
                    store(out, 2 * at, convert(bf16x1, splat(f32x1, value)))

    return pack


@dataclass(frozen=True, slots=True)
class Packing:
    """How a weight becomes what a kernel streams: a share, over elements of `word` bytes.

    `lanes` rows travel together. Of a row each `unit` bytes, the last perhaps fewer, turn into
    `becomes` bytes. Rows that are `apart` take an odd number of cache lines, so that the same place
    of any sixteen rows is seldom in the same set of a cache. A weight of experts, [experts, rows,
    row_bytes], is so many matrices, each packed alone.
    """

    share: Share
    word: type
    lanes: int = LANES
    unit: int = 1
    becomes: int = 1
    apart: bool = False

    def memory(self, weight: Array) -> Array:
        """Memory for the packed weight: uninitialised bytes on a cache line boundary, shaped."""
        shape = self.shape(weight)
        return aligned(math.prod(shape)).reshape(shape)

    def shape(self, weight: Array) -> tuple[int, ...]:
        """Shape of the packed weight: [packed], or [rows, stride] where rows are apart; preceded by
        [experts], if there are any."""
        if weight.ndim == 3:
            return (len(weight), *self.shape(weight[0]))
        size, rows = self.place(weight, len(weight)), len(weight)
        return (rows, size // max(rows, 1)) if self.apart else (size,)

    def matrices(self, weight: Array, packed: Array) -> Iterator[tuple[Array, Array]]:
        """Pairs of a matrix and its packed bytes, for each expert or for the single weight."""
        if weight.ndim == 3:
            yield from zip(weight, packed.reshape(self.shape(weight)), strict=True)
        else:
            yield weight, packed

    def place(self, weight: Array, rows: int) -> int:
        """Offset in the packed weight of the groups after so many rows."""
        row_bytes = -(-weight.shape[1] // self.unit) * self.becomes
        if self.apart:
            row_bytes = (-(-row_bytes // CACHE_LINE) | 1) * CACHE_LINE
        return -(-rows // self.lanes) * self.lanes * int(row_bytes)

    def args_of(self, weight: Array, packed: Array) -> Words:
        """The share's arguments that fill `packed`; both must outlive it.

        Groups of rows are consecutive, so whole groups may be packed independently:
        `args_of(weight[a:b], packed[place(a):place(b)])` with `a` a multiple of `lanes`.
        """
        source: Array = weight.view(self.word)
        values = {"weight": source, "out": packed.reshape(self.shape(weight)).view(self.word)}
        return pack_words(self.share.signature, values)

    def jobs(self, weight: Array) -> tuple[Array, list[Words]]:
        """The packed weight's memory, and for each matrix the share's arguments that fill it.

        weight uint8 [rows, row_bytes] or [experts, rows, row_bytes], C-contiguous -> shaped.
        """
        packed = self.memory(weight)
        return packed, [self.args_of(*of_one) for of_one in self.matrices(weight, packed)]

    def __call__(self, weight: Array, n_threads: int = 1) -> Array:
        """Pack the weight on this thread, in shares of so many."""
        packed = self.memory(weight)
        packed.fill(0xFF)
        for matrix, target in self.matrices(weight, packed):
            args = self.args_of(matrix, target)
            for thread in reversed(range(n_threads)):
                self.share(args, thread, n_threads)
        return packed


def aligned(size: int, boundary: int = CACHE_LINE) -> Array:
    """Uninitialised bytes on a cache line boundary, or on 4096 for direct reads."""
    return _from_boundary(np.empty(size + boundary, np.uint8), boundary)[:size]


def aligned_zeros(shape: tuple[Any, ...], dtype: DTypeLike) -> Array:
    """Zeros on a cache line boundary, which take no memory until they are written."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = _from_boundary(np.zeros(size + CACHE_LINE, np.uint8), CACHE_LINE)
    return memory[:size].view(dtype).reshape(shape)


def _from_boundary(memory: Array, boundary: int) -> Array:
    return memory[-memory.ctypes.data % boundary :]


_words8 = Share(partial(words_packer, WORDS8), WORDS8, "u8")
_words16 = Share(partial(words_packer, WORDS16), WORDS16, "u16")
_words32 = Share(partial(words_packer, WORDS32), WORDS32, "u32")


def of_blocks(format: str, layout: Layout, putting: Callable[[Layout], Any] = words_of) -> Packing:
    """A block format's packing into a layout, with planes filled by `putting`."""
    share = Share(partial(blocks_packer, format, layout, putting), BLOCKS, format)
    unit = layout.blocks * BLOCK // FORMATS[format].block * FORMATS[format].block_bytes
    return Packing(share, np.uint8, unit=unit, becomes=layout.step // LANES)


ROWS = Packing(Share(lambda: rows_copier, APART), np.uint8, lanes=1, apart=True)
BYTES, FOURS = Packing(_words8, np.uint8), Packing(_words32, np.uint32)  # of one, of four elements
PACKINGS: dict[str, Packing] = {
    "F32": FOURS,
    "F16": Packing(_words16, np.uint16),
    "BF16": Packing(_words16, np.uint16),
    **{name: of_blocks(name, layout) for name, layout in LAYOUTS.items()},
}
SPREAD_PACKINGS = PACKINGS | {
    name: of_blocks(name, layout.spread()) for name, layout in LAYOUTS.items() if layout.table
}

LUT_AVX2_PACKINGS = {
    name: of_blocks(name, LAYOUTS[name], partial(nibbles_of, rows_apart=True))
    for name in linear_lut.FORMATS
}
LUT_AVX512_PACKINGS = {
    name: of_blocks(name, LAYOUTS[name], partial(nibbles_of, rows_apart=False))
    for name in linear_lut.FORMATS_OF_AVX512
}
BF16_PACKINGS: dict[str, Packing] = {
    name: Packing(
        Share(partial(pairs_packer, name), BLOCKS, name),
        np.uint8,
        unit=PADDED * FORMATS[name].block_bytes,
        becomes=PADDED * 2,
    )
    for name in ("F32", "F16", "BF16")
}
