"""Weights as CUDA kernels read them: the blocks of a row taken apart, so that each of their parts
lies in a plane of its own and a thread loads 16 bytes of it at once."""

from dataclasses import dataclass

import numpy as np

from reference.formats import FORMATS
from reference.op import Array

ALIGNED = 16  # bytes


@dataclass(frozen=True, slots=True)
class Planes:
    """`parts` are (begin, size) in bytes of a block; those of all blocks of all rows lie together,
    in this order, each plane from a multiple of 16 bytes on."""

    format: str
    parts: tuple[tuple[int, int], ...]

    def begins(self, blocks: int) -> list[int]:
        """Where the planes of so many blocks begin, and the end of the last."""
        found = [0]
        for _, size in self.parts:
            found.append(found[-1] + -(-blocks * size // ALIGNED) * ALIGNED)
        return found

    def bytes(self, rows: int, row_bytes: int) -> int:
        """Of the packed weight."""
        return self.begins(rows * row_bytes // FORMATS[self.format].block_bytes)[-1]

    def __call__(self, weight: Array) -> Array:
        """uint8 [rows, row_bytes] -> uint8 [packed]"""
        size = FORMATS[self.format].block_bytes
        blocks = weight.reshape(-1, size)
        begins = self.begins(len(blocks))
        packed = np.zeros(begins[-1], np.uint8)
        for begin, (first, count) in zip(begins, self.parts, strict=False):
            plane = blocks[:, first : first + count]
            packed[begin : begin + plane.size] = plane.reshape(-1)
        return packed
