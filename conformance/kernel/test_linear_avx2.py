"""linear's dots in AVX2: exact where sums of 16 bits are as large as they can be."""

from typing import Any

import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_array_equal

from kernels.cpu.formats.layouts import BLOCK, LAYOUTS, Layout
from kernels.cpu.isa.simd import i32x8
from kernels.cpu.isa.tiles import store_tile, zeros
from kernels.cpu.linear import linear_avx2
from kernels.cpu.linear.linear_avx2 import MOST, ROWS
from kernels.cpu.linear.linear_halves import LARGEST
from kernels.cpu.linear.linear_pairs import WORDS
from kernels.table import find

Array = np.ndarray[Any, np.dtype[Any]]
LACKS = find("linear/cpu/avx2/Q4_0").missing()
pytestmark = pytest.mark.skipif(bool(LACKS), reason=f"this CPU lacks {' and '.join(LACKS)}")
FORMATS = [*linear_avx2.SHARES]
TOKENS = 2


def codes_of(layout: Layout, planes: Array) -> Array:
    """A block's codes [rows, elements], from its planes [words, rows, 4]."""
    codes = np.zeros((planes.shape[1], WORDS, 4), np.int64)
    first = low = 0
    for bits in layout.planes:
        for c in range(WORDS):
            plane = planes[first + c % bits].astype(np.int64)
            codes[:, c] |= (plane >> bits * (c // bits) & (1 << bits) - 1) << low
        first, low = first + bits, low + bits
    codes = codes.reshape(-1, BLOCK)
    return np.array(layout.table)[codes] if layout.table else codes - layout.zero_point


def dots_of(layout: Layout, part: int, factors: Array, weight: Array, panel: Array) -> Array:
    """The kernel's dots of a part, times factors: [tokens, rows]."""
    add, factors_at = linear_avx2.of_part(layout, part), linear_avx2.factors_of(layout)

    @njit
    def run(factors, weight, panel, out):
        sums = add(zeros(i32x8, TOKENS), factors_at(factors, 0), weight, 0, panel, 0, TOKENS)
        store_tile(sums, out, 0, 0, ROWS)

    out = np.zeros((TOKENS, ROWS), np.int32)
    run(factors, weight, panel, out)
    return out


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("extreme", ["all ones", "random"])
def test_dots_of_the_largest_codes_are_exact(format, extreme):
    """Against integers of 64 bits, with activations of both ends and integers of a byte: no sum
    saturates. Codes that are met unsigned leave the zero point to be subtracted later."""
    layout, rng = LAYOUTS[format], np.random.default_rng(0)
    words = sum(layout.planes)
    planes = rng.integers(0, 256, (words, 2 * ROWS, 4)).astype(np.uint8)
    if extreme == "all ones":
        planes[:] = 255 if not layout.table else 0x77 if format == "MXFP4" else 0
    signed = linear_avx2.signed(layout)
    ends = [-127, 127] if signed else [-LARGEST, LARGEST - 1]
    q = rng.choice(ends, (TOKENS, BLOCK)).astype(np.int8)
    q[0] = ends[0]
    factors = rng.integers(-128, 128, ROWS).astype(np.int8)
    factors[0] = -128
    panel = np.ascontiguousarray(q.reshape(TOKENS, WORDS, 4).transpose(1, 0, 2)).view(np.int32)
    raised = 0 if signed else layout.zero_point
    codes = codes_of(layout, planes[:, :ROWS]) + raised
    times = (factors & 15 if layout.packed_scales else factors).astype(np.int64)
    width = BLOCK // layout.parts
    for part in range(layout.parts):
        own = slice(part * width, (part + 1) * width)
        expected = q[:, own].astype(np.int64) @ codes[:, own].T * times
        found = dots_of(layout, part, factors, planes.reshape(-1), panel.reshape(-1))
        assert_array_equal(found, expected)


@pytest.mark.parametrize("format", FORMATS)
def test_words_are_added_while_they_fit(format):
    """Words are as many as int16 holds at the largest codes and activations, and no more."""
    layout = LAYOUTS[format]
    words, word = linear_avx2.words_together(layout), 2 * LARGEST * layout.widest
    if not linear_avx2.signed(layout):
        assert words * word <= MOST < (words + 1) * word
    assert words >= 1
