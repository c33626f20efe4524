"""Weights as the kernels stream them: 16 rows together, one row a lane (layouts: linear_float.py,
linear_int8.py and linear_bf16.py). Groups of rows are shared among threads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types

from kernels.cpu.formats import TAGS, element
from kernels.cpu.linear import LANES
from kernels.cpu.linear_bf16 import PADDED
from kernels.cpu.linear_int8 import PAYLOAD
from kernels.cpu.share import Share, Words, arguments, pack_words, part
from kernels.cpu.simd import CACHE_LINE, bf16x1, convert, f32x1, load, splat, store
from reference.formats import FORMATS

Array = np.ndarray[Any, np.dtype[Any]]
TILE = 128

WORDS16 = "weight: u16[rows hidden] -> out: u16[packed]"
WORDS32 = "weight: u32[rows hidden] -> out: u32[packed]"
BLOCKS = "weight: u8[rows row_bytes] -> out: u8[packed]"


def words_packer(signature: str) -> Callable[..., None]:
    """[groups][hidden][16] elements, in tiles so that both sides of the transposition stay in
    cache; rows beyond the last are zero."""

    def pack(block, thread, n_threads):
        weight, out = arguments(block, signature)
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


def blocks_packer(payload: int, flip: int) -> Callable[..., None]:
    """[groups][blocks] of [payload / 4][16][4 bytes], `flip` exclusive-or'ed into every word, then
    16 scales of two bytes; rows beyond the last are the last one's again."""
    step = LANES * (payload + 2)

    def pack(block, thread, n_threads):
        weight, out = arguments(block, BLOCKS)
        rows, row_bytes = weight.shape
        blocks = row_bytes // (payload + 2)
        first, last = part((rows + LANES - 1) // LANES, thread, n_threads)
        for group in range(first, last):
            for b in range(blocks):
                base = (group * blocks + b) * step
                scales = base + LANES * payload
                for lane in range(LANES):
                    row = min(group * LANES + lane, rows - 1)
                    source = row * row_bytes + b * (payload + 2)
                    store(out, scales + 2 * lane, load(types.uint16, weight, source))
                    for word in range(payload // 4):
                        value = load(types.uint32, weight, source + 2 + 4 * word)
                        store(out, base + 4 * (LANES * word + lane), np.uint32(value ^ flip))

    return pack


def pairs_packer(format: str) -> Callable[..., None]:
    """[groups][pairs][16 lanes][2] bfloat16, the nearest to each element; zeros beyond rows, and
    beyond hidden up to whole PADDED."""
    tag, element_bytes = TAGS[format], FORMATS[format].block_bytes

    def pack(block, thread, n_threads):
        weight, out = arguments(block, BLOCKS)
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
    `becomes` bytes.
    """

    share: Share
    word: type
    lanes: int = LANES
    unit: int = 1
    becomes: int = 1

    def memory(self, weight: Array) -> Array:
        """For the packed weight: uninitialised uint8 [packed], on a cache line boundary."""
        return aligned(self.place(weight, len(weight)))

    def place(self, weight: Array, rows: int) -> int:
        """Where in the packed weight the groups begin that follow so many rows."""
        row_bytes = -(-weight.shape[1] // self.unit) * self.becomes
        return -(-rows // self.lanes) * self.lanes * int(row_bytes)

    def block(self, weight: Array, packed: Array) -> Words:
        """What makes the share fill `packed`; both must outlive it.

        Groups of rows follow one another, so whole groups may be packed on their own:
        `block(weight[a:b], packed[place(a):place(b)])` with `a` a multiple of `lanes`.
        """
        source: Array = weight.view(self.word)
        values = {"weight": source, "out": packed.view(self.word)}
        return pack_words(self.share.signature, values)

    def job(self, weight: Array) -> tuple[Array, Words]:
        """The packed weight's memory, and the block that makes the share fill it.

        weight uint8 [rows, row_bytes], C-contiguous -> uint8 [packed].
        """
        packed = self.memory(weight)
        return packed, self.block(weight, packed)

    def __call__(self, weight: Array, n_threads: int = 1) -> Array:
        """The packed weight, made by this thread alone in the shares of so many."""
        packed, block = self.job(weight)
        packed.fill(0xFF)
        for thread in reversed(range(n_threads)):
            self.share(block, thread, n_threads)
        return packed


def aligned(size: int) -> Array:
    """Uninitialised bytes on a cache line boundary."""
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size]


_words16 = Share(words_packer(WORDS16), WORDS16, "u16")
_words32 = Share(words_packer(WORDS32), WORDS32, "u32")
_bytes = Share(blocks_packer(PAYLOAD["Q8_0"], 0x80808080), BLOCKS, "Q8_0")  # raised by 128
_nibbles = Share(blocks_packer(PAYLOAD["Q4_0"], 0), BLOCKS, "Q4_0")

PACKINGS: dict[str, Packing] = {
    "F32": Packing(_words32, np.uint32),
    "F16": Packing(_words16, np.uint16),
    "BF16": Packing(_words16, np.uint16),
    "Q8_0": Packing(_bytes, np.uint8),
    "Q4_0": Packing(_nibbles, np.uint8),
}

BF16_PACKINGS: dict[str, Packing] = {
    name: Packing(
        Share(pairs_packer(name), BLOCKS, name),
        np.uint8,
        unit=PADDED * FORMATS[name].block_bytes,
        becomes=PADDED * 2,
    )
    for name in ("F32", "F16", "BF16")
}
