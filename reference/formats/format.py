"""What a weight format is: blocks of a fixed number of elements in a fixed number of bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Integers = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True)
class Format:
    """One GGUF weight format.

    `gguf_type` is its number in a GGUF file. `decode` turns uint8 [blocks, block_bytes] into
    float32 [blocks, block], `encode` the reverse; both are exact definitions, bit for bit. Where
    scales are fitted, `encode_weighted` also takes how much each element matters, and looks for
    those that are best for it. `part` elements of a block share a scale; where they have an offset,
    too, `offset` gives it as `decode` gives the elements. A format that is only read has no
    `encode`, but `scaled`, which gives blocks other scales, float32 [blocks, 1].
    """

    name: str
    gguf_type: int
    block: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]
    encode: Callable[[Floats], Bytes] | None = None
    encode_weighted: Callable[[Floats, Floats], Bytes] | None = None
    part: int = 32
    offset: Callable[[Bytes], Floats] | None = None
    scaled: Callable[[Bytes, Floats], Bytes] | None = None

    @property
    def bits(self) -> float:
        """Bits per weight."""
        return 8 * self.block_bytes / self.block

    def row_bytes(self, elements: int) -> int:
        if elements % self.block:
            raise ValueError(f"{self.name} rows hold multiples of {self.block}, got {elements}")
        return elements // self.block * self.block_bytes

    def dequantise(self, data: Bytes) -> Floats:
        """uint8 [..., row_bytes] -> float32 [..., elements]."""
        blocks = np.ascontiguousarray(data).reshape(-1, self.block_bytes)
        elements = data.shape[-1] // self.block_bytes * self.block
        return self.decode(blocks).reshape(*data.shape[:-1], elements)

    def quantise(self, x: Floats) -> Bytes:
        """float32 [..., elements] -> uint8 [..., row_bytes]."""
        row_bytes = self.row_bytes(x.shape[-1])
        if self.encode is None:
            raise ValueError(f"{self.name} cannot be quantised to: its files are only read")
        blocks = np.ascontiguousarray(x, np.float32).reshape(-1, self.block)
        return self.encode(blocks).reshape(*x.shape[:-1], row_bytes)

    def quantise_weighted(self, x: Floats, importance: Floats) -> Bytes:
        """As `quantise`, importance float32 [elements] being that of each column."""
        if self.encode_weighted is None:
            raise ValueError(f"{self.name} has nothing that an importance could decide")
        row_bytes = self.row_bytes(x.shape[-1])
        matters = np.broadcast_to(importance, x.shape)
        blocks, weights = (
            np.ascontiguousarray(v, np.float32).reshape(-1, self.block) for v in (x, matters)
        )
        return self.encode_weighted(blocks, weights).reshape(*x.shape[:-1], row_bytes)

    def like(self, x: Floats, rng: np.random.Generator) -> Bytes:
        """Some rows as large as x, float32 [..., elements] -> uint8 [..., row_bytes]: x quantised
        or, in a format that is only read, any blocks whose largest magnitudes are those of x."""
        if self.scaled is None:
            return self.quantise(x)
        row_bytes = self.row_bytes(x.shape[-1])
        largest = np.abs(x).reshape(-1, self.block).max(axis=1, keepdims=True).astype(np.float32)
        drawn = rng.integers(0, 256, (len(largest), self.block_bytes), np.uint8)
        unit = self.decode(self.scaled(drawn, np.ones_like(largest)))
        d = largest / np.abs(unit).max(axis=1, keepdims=True)
        return self.scaled(drawn, d).reshape(*x.shape[:-1], row_bytes)


def from_halves(data: Bytes) -> Floats:
    """uint8 [n, 2k] of float16 -> float32 [n, k]."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def to_halves(x: Floats) -> Bytes:
    """float32 [n, k] -> uint8 [n, 2k] of float16, nearest even; too large becomes infinity."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).view(np.uint8)


def by_parts(values: Integers, per_part: Floats) -> Floats:
    """Integers [n, elements] times what each part of a block has, [n, parts]."""
    (n, elements), parts = values.shape, per_part.shape[1]
    in_parts = values.reshape(n, parts, elements // parts).astype(np.float32)
    return np.asarray((per_part[..., None] * in_parts).reshape(n, elements))


def inverse(d: Floats) -> Floats:
    """1 / d, and 0 for 0."""
    with np.errstate(divide="ignore"):
        return np.where(d == 0, np.float32(0), np.float32(1) / d)
