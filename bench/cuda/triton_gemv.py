"""A plain matrix-vector product in Triton, as a peer: a program for each block of rows."""

from typing import Any

import triton
import triton.language as tl

ROWS, COLUMNS = 8, 512


@triton.jit
def _gemv(x, weight, out, hidden, rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for begin in range(0, hidden, COLUMNS):
        column = begin + tl.arange(0, COLUMNS)
        inside = (row < rows)[:, None] & (column < hidden)[None, :]
        w = tl.load(weight + row[:, None] * hidden + column[None, :], mask=inside, other=0.0)
        v = tl.load(x + column, mask=column < hidden, other=0.0)
        sums += w.to(tl.float32) * v.to(tl.float32)[None, :]
    tl.store(out + row, tl.sum(sums, axis=1), mask=row < rows)


def gemv(x: Any, weight: Any, out: Any) -> None:
    """out = weight x, of tensors x [hidden], weight [rows, hidden], out [rows]."""
    rows, hidden = weight.shape
    grid = (triton.cdiv(rows, ROWS),)
    _gemv[grid](x, weight, out, hidden, rows, ROWS=ROWS, COLUMNS=COLUMNS)
