"""How the weights of block formats lie in packed groups of sixteen rows, one row a lane.

A group is a sequence of units: what has one float scale a row, a block of 32 elements or eight of
them. A unit is its blocks, then the rows' scales d and, where there is one, their m (both float16,
MXFP4's d bfloat16). A block is

- planes: the codes' bits, lowest first. A plane of k bits is k words of four bytes for each row;
  elements 4c to 4c + 3 have theirs in word c % k, at bit k * (c // k) of the bytes;
- where parts have them, the integers that multiply d, a byte a row and part;
- and those that multiply m, unless they are the upper halves of the same bytes.

Codes are not negative: the zero point is added to integers, or to the values of a table that codes
name.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernels.cpu.linear.linear import LANES
from reference.formats.codebooks import FP4, NL

Array = np.ndarray[Any, np.dtype[Any]]
BLOCK = 32  # elements that share a scale of their activations
WORD_ROWS = 4 * LANES  # bytes of a word of every row


@dataclass(frozen=True, slots=True)
class Layout:
    """See above. `parts` are those of a block; `integer_scales` and `mins` whether they have
    integers that multiply d and m, `packed_scales` whether the two share a byte; `m` whether there
    is an offset; `table` what codes name, if not integers."""

    planes: tuple[int, ...]
    zero_point: int = 0
    blocks: int = 1
    parts: int = 1
    integer_scales: bool = False
    m: bool = False
    mins: bool = False
    packed_scales: bool = False
    table: tuple[int, ...] = ()
    bfloat16: bool = False

    @property
    def payload(self) -> int:
        """Bytes of a block's planes, of all rows."""
        return WORD_ROWS * sum(self.planes)

    @property
    def block(self) -> int:
        """Bytes of a block of all rows."""
        bytes_ = self.integer_scales + (self.mins and not self.packed_scales)
        return self.payload + LANES * self.parts * bytes_

    @property
    def step(self) -> int:
        """Bytes of a unit of all rows."""
        return self.blocks * self.block + 2 * LANES * (1 + self.m)

    @property
    def widest(self) -> int:
        """The largest code that meets activations."""
        return max(self.table) + self.zero_point if self.table else (1 << sum(self.planes)) - 1

    def spread(self) -> "Layout":
        """The same without a table: bytes that are what the codes name."""
        return replace(self, planes=(8,), table=()) if self.table else self


def _table(values: Array) -> tuple[int, ...]:
    return tuple(map(int, values))


# Codes are what an index names, a byte each.
GRID = Layout((8,), 128, 8, integer_scales=True)
GRIDS = {
    "IQ1_S": GRID,
    "IQ1_M": replace(GRID, parts=2),
    "IQ2_XXS": GRID,
    "IQ2_XS": replace(GRID, parts=2),
    "IQ2_S": replace(GRID, parts=2),
    "IQ3_XXS": GRID,
    "IQ3_S": GRID,
}
LAYOUTS = {
    "Q4_0": Layout((4,), 8),
    "Q4_1": Layout((4,), m=True),
    "Q5_0": Layout((4, 1), 16),
    "Q5_1": Layout((4, 1), m=True),
    "Q8_0": Layout((8,), 128),
    "Q2_K": Layout((2,), 0, 8, parts=2, integer_scales=True, m=True, mins=True, packed_scales=True),
    "Q3_K": Layout((2, 1), 4, 8, parts=2, integer_scales=True),
    "Q4_K": Layout((4,), 0, 8, integer_scales=True, m=True, mins=True),
    "Q5_K": Layout((4, 1), 0, 8, integer_scales=True, m=True, mins=True),
    "Q6_K": Layout((4, 2), 32, 8, parts=2, integer_scales=True),
    "IQ4_NL": Layout((4,), 128, table=_table(NL)),
    "IQ4_XS": Layout((4,), 128, 8, integer_scales=True, table=_table(NL)),
    "MXFP4": Layout((4,), 12, table=_table(FP4), bfloat16=True),
    "TQ1_0": Layout((2,), 1, 8),
    "TQ2_0": Layout((2,), 1, 8),
    **GRIDS,
}
