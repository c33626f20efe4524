"""linear for block formats in NEON: `neon_dotprod`, and `neon_i8mm` with two tokens at a time.

Both multiply signed by signed bytes: codes that reach beyond 127 are lowered by what they were
raised, and what a table names is laid down as it is. Dots are exact, so their bits are those of
linear_blocks.py's other variants.

- sdot adds four products to each of four rows' sums, and takes one of the four words of a register
  of activations: [words][tokens of the tile], as they lie in the panel.
- smmla adds eight to each of four sums, of two rows and two tokens. The words of a pair lie side by
  side, [pairs of words][tokens of the tile][2], and two registers of weights are interleaved by
  words. A single token's panel is the same in both ways, and sdot's dots are as many then.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kernels.cpu.formats.layouts import BLOCK, LAYOUTS, WORD_ROWS, Layout
from kernels.cpu.isa.simd import Vector, constant, loading, shuffle
from kernels.cpu.isa.simd_neon import (
    BYTES,
    FIRST_ROWS,
    FIRST_TOKEN,
    I8X16,
    I32X4,
    LAST_ROWS,
    LAST_TOKEN,
    ROWS,
    dots_of_eights,
    dots_of_fours,
    joined,
    looked_up,
    registers,
)
from kernels.cpu.linear.linear import Blocking
from kernels.cpu.linear.linear_blocks import Microkernel, shares
from kernels.cpu.linear.linear_int8 import code_of, pack_word

WORDS = BLOCK // 4  # of a block's row
Tile = list[list[Any]]  # registers of four sums: by tokens, and by fours of rows


@njit(inline="always")
def pack_pairs(panel, k, t, size, four):
    panel[(k // 2 * size + t) * 2 + k % 2] = four


def signed(layout: Layout) -> bool:
    """Whether codes are stored as the signed values before their offset: necessary beyond 127, and
    otherwise cheaper than to begin every dot of two parts with a total."""
    return layout.zero_point > 0 and (
        layout.widest > 127 or layout.parts == 2 or bool(layout.table)
    )


def codes_of(builder: Any, layout: Layout, kind: ir.VectorType, load: Any, word: int) -> list[Any]:
    """A word's codes as registers of signed bytes; load(number, type) loads a word of planes."""
    code = code_of(builder, layout, lambda number: load(number, kind), word)
    if layout.table:
        code = looked_up(builder, code, layout.table)
    elif signed(layout):
        code = builder.sub(code, constant(kind, layout.zero_point))
    return registers(builder, code, BYTES)


def by_words(builder: Any, sums: Tile, codes: list[list[Any]], q: Callable[[int], Any]) -> None:
    """Add a part's dots by sdot: codes[word][four rows]; q(i) is the panel's register i."""
    count = len(sums)
    for word, of_rows in enumerate(codes):
        for t, row in enumerate(sums):
            register, lane = divmod(word * count + t, ROWS)
            for i, code in enumerate(of_rows):
                row[i] = dots_of_fours(builder, row[i], code, q(register), lane)


def by_pairs(builder: Any, sums: Tile, codes: list[list[Any]], q: Callable[[int], Any]) -> None:
    """The same by smmla, for an even number of tokens."""
    count, twos = len(sums), list[list[Any]]()
    for pair in zip(as_words(builder, codes[::2]), as_words(builder, codes[1::2]), strict=True):
        rows = [
            shuffle(builder, one, other, half)
            for one, other in zip(*pair, strict=True)
            for half in (FIRST_ROWS, LAST_ROWS)
        ]
        twos.append([builder.bitcast(v, I8X16) for v in rows])
    for t in range(0, count, 2):
        tokens = sums[t], sums[t + 1]
        held = [ir.Constant(I32X4, None)] * len(twos[0])  # of two tokens by two rows
        for number, rows in enumerate(twos):
            words = builder.bitcast(q((number * count + t) // 2), I8X16)
            held = [
                dots_of_eights(builder, h, words, two) for h, two in zip(held, rows, strict=True)
            ]
        for i, (low, high) in enumerate(zip(held[::2], held[1::2], strict=True)):
            for row, half in zip(tokens, (FIRST_TOKEN, LAST_TOKEN), strict=True):
                row[i] = builder.add(row[i], shuffle(builder, low, high, half))


def as_words(builder: Any, codes: list[list[Any]]) -> list[list[Any]]:
    return [[builder.bitcast(v, I32X4) for v in registers] for registers in codes]


def of_part(matrix: bool, lanes: int, layout: Layout, part: int) -> Any:
    """An intrinsic of (dots, weight, at, panel, where, size): dots plus those of a block's part."""
    words = WORDS // layout.parts
    kind = Vector("i8", 4 * lanes).ir

    @intrinsic
    def add(typing, dots, weight, at, panel, where, size):
        def codegen(context, builder, signature, values):
            tile, count = values[0], signature.args[0].count

            loaded = loading(context, builder, signature, values)

            def plane(number: int, of: ir.VectorType) -> Any:
                return loaded(1, number * WORD_ROWS, of)

            def panel_of(register: int) -> Any:
                return loaded(3, part * words * count + register * ROWS, I32X4)

            own = range(part * words, (part + 1) * words)
            codes = [codes_of(builder, layout, kind, plane, word) for word in own]
            sums = [registers(builder, builder.extract_value(tile, t), ROWS) for t in range(count)]
            meet = by_pairs if matrix and count % 2 == 0 else by_words
            meet(builder, sums, codes, panel_of)
            for t, row in enumerate(sums):
                tile = builder.insert_value(tile, joined(builder, row), t)
            return tile

        return dots(dots, weight, types.intp, panel, types.intp, types.intp), codegen

    return add


@dataclass(frozen=True, slots=True)
class Neon(Microkernel):
    """Dots of signed bytes; two tokens by two rows at once, if `matrix`."""

    matrix: bool

    def zero_point_correction(self, layout: Layout) -> int:
        return 0 if signed(layout) else -layout.zero_point

    def dots(self, layout: Layout) -> tuple[Any, ...]:
        return tuple(of_part(self.matrix, self.lanes, layout, part) for part in range(layout.parts))


# The sums and dots of a tile of eight fill all but a few registers; smmla's products for odd
# tiles are half wasted, so the only odd one is a single token's.
BLOCKING = Blocking((8, 4, 2, 1), 48, 64)
DOTPROD = Neon(8, 1, pack_word, BLOCKING, matrix=False)
I8MM = Neon(8, 1, pack_pairs, BLOCKING, matrix=True)
DOTPROD_SHARES = shares(DOTPROD, "neon_dotprod", LAYOUTS)
I8MM_SHARES = shares(I8MM, "neon_i8mm", LAYOUTS)
