"""Weights as the kernels stream them: 32 rows together, one row a lane (layouts: linear.py)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.cpu.linear import LANES
from kernels.cpu.share import Share, Words, arguments, pack_words, part, share

Array = np.ndarray[Any, np.dtype[Any]]
CACHE_LINE = 64
TILE = 128

WORDS16 = "weight: u16[rows hidden] -> out: u16[packed]"
WORDS32 = "weight: u32[rows hidden] -> out: u32[packed]"
BLOCKS = "weight: u8[rows row_bytes], block_bytes: i64 -> out: u8[packed]"


def words_packer(signature: str) -> Callable[..., None]:
    """[groups][hidden][32] elements: groups are shared, and go in tiles so that both sides of the
    transposition stay in cache."""

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


@share(BLOCKS)
def pack_blocks(block, thread, n_threads):
    """[groups][blocks] of [payload bytes][32], then 32 scales of two bytes."""
    weight, block_bytes, out = arguments(block, BLOCKS)
    rows = weight.shape[0]
    blocks = weight.shape[1] // block_bytes
    first, last = part((rows + LANES - 1) // LANES, thread, n_threads)
    for group in range(first, last):
        valid = min(LANES, rows - group * LANES)
        for b in range(blocks):
            base = (group * blocks + b) * block_bytes * LANES
            scales = base + (block_bytes - 2) * LANES
            for i in range(base, base + block_bytes * LANES):
                out[i] = 0
            for lane in range(valid):
                source = weight[group * LANES + lane, b * block_bytes : (b + 1) * block_bytes]
                out[scales + 2 * lane], out[scales + 2 * lane + 1] = source[0], source[1]
                for j in range(2, block_bytes):
                    out[base + (j - 2) * LANES + lane] = source[j]


@share(BLOCKS)
def pack_dwords(block, thread, n_threads):
    """[groups of 16][blocks] of [payload / 4][16][4 bytes], then 16 scales of two bytes."""
    weight, block_bytes, out = arguments(block, BLOCKS)
    rows = weight.shape[0]
    blocks = weight.shape[1] // block_bytes
    first, last = part((rows + 15) // 16, thread, n_threads)
    for group in range(first, last):
        for b in range(blocks):
            base = (group * blocks + b) * block_bytes * 16
            scales = base + (block_bytes - 2) * 16
            for lane in range(16):
                row = min(group * 16 + lane, rows - 1)  # rows beyond the last are never stored
                source = weight[row, b * block_bytes : (b + 1) * block_bytes]
                out[scales + 2 * lane], out[scales + 2 * lane + 1] = source[0], source[1]
                for j in range(block_bytes - 2):
                    out[base + j // 4 * 64 + 4 * lane + j % 4] = source[j + 2]


@dataclass(frozen=True, slots=True)
class Packing:
    """How a weight becomes what a kernel streams: a share, over elements of `word` bytes.

    `lanes` rows travel together.
    """

    share: Share
    word: type
    block_bytes: int = 0
    lanes: int = LANES

    def job(self, weight: Array) -> tuple[Array, Words]:
        """The packed weight's memory, and the block that makes the share fill it.

        weight uint8 [rows, row_bytes] -> uint8 [packed], on a cache line boundary.
        """
        source: Array = np.ascontiguousarray(weight).view(self.word)
        groups = -(-len(weight) // self.lanes)
        packed = aligned(groups * self.lanes * weight.shape[1])
        values = {"weight": source, "out": packed.view(self.word), "block_bytes": self.block_bytes}
        return packed, pack_words(self.share.signature, values)

    def __call__(self, weight: Array) -> Array:
        """The packed weight, made by this thread alone."""
        packed, block = self.job(weight)
        self.share(block)
        return packed


def aligned(size: int) -> Array:
    """Uninitialised bytes on a cache line boundary."""
    memory = np.empty(size + CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % CACHE_LINE
    return memory[start : start + size]


_words16 = Share(words_packer(WORDS16), WORDS16, "u16")
_words32 = Share(words_packer(WORDS32), WORDS32, "u32")

PACKINGS: dict[str, Packing] = {
    "F32": Packing(_words32, np.uint32),
    "F16": Packing(_words16, np.uint16),
    "BF16": Packing(_words16, np.uint16),
    "Q8_0": Packing(pack_blocks, np.uint8, 34),
    "Q4_0": Packing(pack_blocks, np.uint8, 18),
}

VNNI_PACKINGS: dict[str, Packing] = {
    "Q8_0": Packing(pack_dwords, np.uint8, 34, 16),
    "Q4_0": Packing(pack_dwords, np.uint8, 18, 16),
}
