"""Vector instructions that only AArch64 has; each names the CPU feature it needs."""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.simd import I32, call_llvm, shuffle

BYTES = 16  # of a register
ROWS = 4  # of four bytes, in a register
I8X16, I32X4 = ir.VectorType(ir.IntType(8), BYTES), ir.VectorType(I32, ROWS)
# Lanes of two registers: by turns, of two words of four rows; one after the other, of two tokens.
FIRST_ROWS, LAST_ROWS = (0, 4, 1, 5), (2, 6, 3, 7)
FIRST_TOKEN, LAST_TOKEN = (0, 1, 4, 5), (2, 3, 6, 7)


def registers(builder: Any, v: Any, lanes: int) -> list[Any]:
    """Split a vector into registers of so many lanes."""
    return [shuffle(builder, v, v, range(at, at + lanes)) for at in range(0, v.type.count, lanes)]


def joined(builder: Any, parts: Sequence[Any]) -> Any:
    """Concatenate these registers, a power of two of them."""
    while len(parts) > 1:
        both = range(2 * parts[0].type.count)
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [shuffle(builder, low, high, both) for low, high in pairs]
    return parts[0]


def looked_up(builder: Any, index: Any, table: Sequence[int]) -> Any:
    """Table lookup of each byte by its four low bits, bits five to eight being zero."""
    values, name = ir.Constant(I8X16, [*table]), "llvm.aarch64.neon.tbl1.v16i8"
    found = [call_llvm(builder, name, I8X16, [values, v]) for v in registers(builder, index, BYTES)]
    return joined(builder, found)


def dots_of_fours(builder: Any, sums: Any, codes: Any, word: Any, lane: int) -> Any:
    """sums + the dot of each row's four bytes with the four of one of four words, all signed: i32x4
    (DotProd's sdot by an element). Sums wrap around."""
    same = builder.bitcast(shuffle(builder, word, word, [lane] * ROWS), I8X16)
    name = "llvm.aarch64.neon.sdot.v4i32.v16i8"
    return call_llvm(builder, name, I32X4, [sums, codes, same])


def dots_of_eights(builder: Any, sums: Any, two: Any, others: Any) -> Any:
    """sums + the dots of two rows of eight bytes with two others, all signed: i32x4, a row of the
    first after the other (I8MM's smmla). Sums wrap around."""
    name = "llvm.aarch64.neon.smmla.v4i32.v16i8"
    return call_llvm(builder, name, I32X4, [sums, two, others])


def dots_of_four_bf16(builder: Any, sums: Any, two: Any, others: Any) -> Any:
    """The same of rows of four bfloat16, as bytes: f32x4 (BF16's bfmmla). It rounds to odd, adds
    two products at a time, and takes subnormal numbers for zero."""
    name = "llvm.aarch64.neon.bfmmla.v4f32.v16i8"  # as LLVM had it before it knew bfloat
    return call_llvm(builder, name, sums.type, [sums, two, others])
