"""The type of a weight format: blocks of a fixed number of elements in a fixed number of bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Integers = np.ndarray[Any, np.dtype[Any]]
Floats = np.ndarray[Any, np.dtype[np.float32]]
LARGEST_HALF = 65504.0  # the largest finite float16
FITTED = 2**14  # elements of random rows that are quantised, which is slow
NO_INVERSE = np.float32(2.0**-128)  # the largest number whose inverse overflows float32


@dataclass(frozen=True, slots=True)
class Format:
    """One GGUF weight format.

    `gguf_type` is its type id in a GGUF file. `decode` maps uint8 [blocks, block_bytes] to float32
    [blocks, block], `encode` is the reverse; both are defined bit for bit. Where scales are
    searched, `encode_weighted` also takes the importance of each element and minimises the weighted
    error. `part` elements of a block share a scale; if they also have an offset, `offset` decodes
    it like `decode`. A read-only format has no `encode`. `scaled` replaces the float16 scales of
    blocks by float32 [blocks, 2]: d and, if there is one, the minimum's.
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
        with np.errstate(invalid="ignore", over="ignore"):  # files may hold infinite scales
            return self.decode(blocks).reshape(*data.shape[:-1], elements)

    def quantise(self, x: Floats) -> Bytes:
        """float32 [..., elements] -> uint8 [..., row_bytes]."""
        row_bytes = self.row_bytes(x.shape[-1])
        if self.encode is None:
            raise ValueError(f"{self.name} cannot be quantised to: it is read-only")
        blocks = np.ascontiguousarray(x, np.float32).reshape(-1, self.block)
        with np.errstate(over="ignore", invalid="ignore"):  # such tries of a scale lose
            return self.encode(blocks).reshape(*x.shape[:-1], row_bytes)

    def quantise_weighted(self, x: Floats, importance: Floats) -> Bytes:
        """As `quantise`, with importance float32 [elements], one for each column."""
        if self.encode_weighted is None:
            raise ValueError(f"{self.name} has no scales that importance could change")
        row_bytes = self.row_bytes(x.shape[-1])
        matters = np.broadcast_to(importance, x.shape)
        blocks, weights = (
            np.ascontiguousarray(v, np.float32).reshape(-1, self.block) for v in (x, matters)
        )
        with np.errstate(over="ignore", invalid="ignore"):  # such tries of a scale lose
            return self.encode_weighted(blocks, weights).reshape(*x.shape[:-1], row_bytes)

    def random_like(self, x: Floats, rng: np.random.Generator) -> Bytes:
        """Rows of the magnitude of x, float32 [..., elements] -> uint8 [..., row_bytes]: x
        quantised or, in a read-only format, random blocks with the same largest magnitudes as x."""
        if self.encode is not None:
            return self.quantise(x)
        drawn = self._any(x.size // self.block, rng)
        unit = self._largest(self.decode(self._with(drawn, np.ones((1, 2), np.float32))))
        d = np.divide(self._largest(x), unit)
        return self._with(drawn, d).reshape(*x.shape[:-1], self.row_bytes(x.shape[-1]))

    def random_rows(self, x: Floats, rng: np.random.Generator) -> Bytes:
        """Random rows as files may hold them, float32 [rows, elements] -> uint8 [rows, row_bytes].

        Each is x quantised (only among the first), random blocks as large as x, or random blocks
        whose scales are near one power of two, from float16's smallest subnormal to its largest
        number, some of them 0. All scales are finite, and those of random blocks have either sign.
        """
        if self.scaled is None:
            return self.quantise(x)
        (rows, elements), count = x.shape, x.size // self.block
        drawn, signs = self._any(count, rng), rng.choice(np.array([-1, 1], np.float32), (count, 2))
        d = np.divide(self._largest(x), self._largest(self.decode(self._with(drawn, signs))))
        power = np.repeat(rng.uniform(-25, 16, rows), elements // self.block)
        free = 2 ** (power + rng.random(count)) * (rng.random(count) < 0.95)
        kind = rng.integers(0 if self.encode else 1, 3, rows)
        later = slice(FITTED // elements + 1, None)
        kind[later] = kind[later].clip(1)
        d = np.where(np.repeat(kind == 2, elements // self.block)[:, None], free[:, None], d)
        found = self._with(drawn, signs * d).reshape(rows, self.row_bytes(elements))
        if (own := kind == 0).any():
            found[own] = self.quantise(x[own].clip(-LARGEST_HALF, LARGEST_HALF))
        return found

    def with_scale(self, data: Bytes, scale: float, rng: np.random.Generator) -> Bytes:
        """Rows of which about one in four gets a block with this scale, infinity or NaN,
        alternately as d and as the minimum's; an element in formats of one element a block. MXFP4
        has no such scales, so its rows are unchanged."""
        if self.scaled is None and self.block > 1:
            return data
        blocks = data.copy().reshape(len(data), -1, self.block_bytes)
        rows = np.unique(rng.choice(len(blocks), -(-len(blocks) // 4)))
        at = rows, rng.integers(0, blocks.shape[1], len(rows))
        if self.scaled is None:
            blocks[at] = self.quantise(np.full((len(rows), 1), scale, np.float32))
        else:
            turns = np.arange(2) == np.arange(len(rows))[:, None] % 2
            blocks[at] = self.scaled(blocks[at], np.where(turns, scale, 1).astype(np.float32))
        return blocks.reshape(data.shape)

    def _any(self, count: int, rng: np.random.Generator) -> Bytes:
        """Blocks of random bytes."""
        return rng.integers(0, 256, (count, self.block_bytes), np.uint8)

    def _with(self, blocks: Bytes, scales: Floats) -> Bytes:
        """The blocks with these scales, broadcast to [blocks, 2] and clipped to float16."""
        assert self.scaled is not None
        held = np.clip(scales, -LARGEST_HALF, LARGEST_HALF).astype(np.float32)
        return self.scaled(blocks, np.broadcast_to(held, (len(blocks), 2)))

    def _largest(self, x: Floats) -> Floats:
        """The largest magnitude of each block, [blocks, 1]."""
        sizes = np.abs(x).reshape(-1, self.block)
        return np.asarray(sizes.max(axis=1, keepdims=True), np.float32)


def from_halves(data: Bytes) -> Floats:
    """uint8 [n, 2k] of float16 -> float32 [n, k]."""
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def to_halves(x: Floats) -> Bytes:
    """float32 [n, k] -> uint8 [n, 2k] of float16, nearest even; overflow becomes infinity."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).view(np.uint8)


def scaled_at(*places: int) -> Callable[[Bytes, Floats], Bytes]:
    """A `Format.scaled` for d and, if there is one, the minimum's scale at these byte offsets."""

    def scaled(blocks: Bytes, scales: Floats) -> Bytes:
        found = blocks.copy()
        for i, place in enumerate(places):
            found[:, place : place + 2] = to_halves(scales[:, i : i + 1])
        return found

    return scaled


def by_parts(values: Integers, per_part: Floats) -> Floats:
    """Integers [n, elements] times the factors of their parts, [n, parts]."""
    (n, elements), parts = values.shape, per_part.shape[1]
    in_parts = values.reshape(n, parts, elements // parts).astype(np.float32)
    return np.asarray((per_part[..., None] * in_parts).reshape(n, elements))


def inverse(d: Floats) -> Floats:
    """1 / d, or 0 if that overflows float32: for d up to 2^-128."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(np.abs(d) > NO_INVERSE, np.float32(1) / d, np.float32(0))
