"""Weights in the layout of CUDA kernels: each kind of a block's data is in a plane of its own, so
that a thread loads 16 bytes of it at once, and neighbouring threads adjacent bytes.

Planes begin at multiples of 16 bytes. Block formats have these, for blocks of 32 elements
(codes.cuh):

- the bits of codes, lowest first. A plane of k bits has k words of four bytes for each block;
  elements 4c to 4c + 3 are in word c % k, at bit k * (c // k) of the bytes. Codes of eight
  bits are int8; others are not negative: integers plus the zero point, or indices of a table;
- where parts of a block have them, the integers that multiply d, a byte each. The factors of m are
  their upper half, or a separate byte;
- d, and m beside it, of each block of the file's format.

Floats are as in the file, or rounded to bfloat16.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kernels.cpu.formats.code_planes import SIGNATURE, packer, sizes
from kernels.cpu.runtime.share import pack_words
from kernels.provenance import fingerprint
from reference.formats import FORMATS
from reference.op import Array

ALIGNED = 16  # bytes
TOGETHER = 2**16  # elements rounded at a time, so that intermediates stay in a cache


@dataclass(frozen=True, slots=True)
class Codes:
    """For formats whose blocks must be split bit by bit."""

    format: str

    def sizes(self) -> Iterable[int]:
        """Bytes in each plane of a block."""
        return sizes(self.format)

    def begins(self, blocks: int) -> list[int]:
        """Where the planes of so many blocks begin, and the end of the last."""
        found = [0]
        for size in self.sizes():
            found.append(found[-1] + -(-blocks * size // ALIGNED) * ALIGNED)
        return found

    def bytes(self, rows: int, row_bytes: int) -> int:
        """Bytes of the packed weight."""
        return self.begins(rows * row_bytes // FORMATS[self.format].block_bytes)[-1]

    @property
    def fingerprint(self) -> str:
        """sha256 of the packer."""
        return fingerprint(__name__, packer(self.format).fingerprint)

    def __call__(self, weight: Array) -> Array:
        """uint8 [rows, row_bytes] -> uint8 [packed]"""
        blocks = np.ascontiguousarray(weight).reshape(-1, FORMATS[self.format].block_bytes)
        begins = np.array(self.begins(len(blocks)))
        packed = np.zeros(begins[-1], np.uint8)
        values = {"weight": blocks, "begins": begins, "out": packed}
        packer(self.format)(pack_words(SIGNATURE, values))
        return packed


@dataclass(frozen=True, slots=True)
class Planes(Codes):
    """For formats whose blocks contain the planes as they are: `parts` are (begin, size) in bytes
    of a block."""

    parts: tuple[tuple[int, int], ...]

    def sizes(self) -> Iterable[int]:
        return (size for _, size in self.parts)

    @property
    def fingerprint(self) -> str:
        """sha256 of the packer."""
        return fingerprint(__name__, repr(self))

    def __call__(self, weight: Array) -> Array:
        """uint8 [rows, row_bytes] -> uint8 [packed]"""
        blocks = weight.reshape(-1, FORMATS[self.format].block_bytes)
        begins = self.begins(len(blocks))
        packed = np.zeros(begins[-1], np.uint8)
        for begin, (first, count) in zip(begins, self.parts, strict=False):
            plane = blocks[:, first : first + count]
            packed[begin : begin + plane.size] = plane.reshape(-1)
        return packed


@dataclass(frozen=True, slots=True)
class Bfloats:
    """For floats of another format, rounded to bfloat16."""

    format: str

    def bytes(self, rows: int, row_bytes: int) -> int:
        """Bytes of the packed weight."""
        return rows * FORMATS["BF16"].row_bytes(row_bytes // FORMATS[self.format].block_bytes)

    @property
    def fingerprint(self) -> str:
        """sha256 of the packer."""
        return fingerprint(__name__, repr(self))

    def __call__(self, weight: Array) -> Array:
        """uint8 [rows, row_bytes] -> uint8 [rows, 2 * hidden]"""
        rows, row_bytes = weight.shape
        packed = np.empty((rows, self.bytes(1, row_bytes)), np.uint8)
        some = max(1, TOGETHER * FORMATS[self.format].block_bytes // row_bytes)
        for begin in range(0, rows, some):
            part = FORMATS[self.format].dequantise(weight[begin : begin + some])
            packed[begin : begin + some] = FORMATS["BF16"].quantise(part)
        return packed
