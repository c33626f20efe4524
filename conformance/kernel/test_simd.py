"""SIMD vectors compared with NumPy where no kernel's trial would tell: rounding, special values,
and other machines' behaviour."""

import numpy as np
import pytest
from llvmlite import ir
from numba import njit
from numba.extending import intrinsic
from numpy.testing import assert_array_equal

from conformance.support.special_numbers import Array, numbers, same_numbers, swept
from kernels.cpu.isa import simd
from kernels.cpu.isa.simd import (
    Vector,
    bf16x16,
    bf16x32,
    convert,
    f16x16,
    f32x16,
    fma,
    i8x32,
    load,
    max_lanes,
    maximum,
    store,
    sum_lanes,
)
from kernels.cpu.isa.simd_exp import exp, exp_of_negative
from kernels.cpu.isa.simd_shuffle import first_lanes, stack
from kernels.provenance import cpu_features
from reference.formats.floats import encode_bf16

f16x32, f32x32 = Vector("f16", 32), Vector("f32", 32)
ALL_16_BITS = np.arange(65536, dtype=np.uint16)


def converted(source: Vector, target: Vector, values: Array, dtype: type) -> Array:
    """All values, through loads of `source`, as lanes of `target`."""
    return swept(njit(lambda v: convert(target, v)), values, vector=source, dtype=dtype)


def test_the_maximum_of_a_nan_is_its_second_argument():
    """Otherwise it is the larger; test_lanes.py covers other operations of two vectors."""
    a, b = numbers(1), numbers(2)
    found = swept(njit(lambda v, w: maximum(v, w)), a, b)
    with np.errstate(invalid="ignore"):
        same_numbers(found, np.where(a > b, a, b))


def test_fma_rounds_once_where_the_machine_can():
    """a * b + c of numbers whose float64 result is exact is that result, rounded."""
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-(2**14), 2**14, 1600).astype(np.float32) for _ in range(3))
    out = swept(njit(lambda u, v, w: fma(u, v, w)), a, b, c)
    once = (a.astype(np.float64) * b + c).astype(np.float32)
    twice = a * b + c
    assert np.any(once != twice)
    assert np.all((out == once) | (out == twice))
    if "fma" in cpu_features():
        assert_array_equal(out, once)


def test_every_float16_widens_exactly_by_integer_arithmetic():
    """Integer arithmetic serves machines without an instruction for it."""

    @intrinsic
    def widen(typing, v):
        def codegen(context, builder, signature, values):
            return simd._widen_half(builder, values[0], v.lanes)

        return v.of("f32")(v), codegen

    out = swept(njit(lambda v: widen(v)), ALL_16_BITS, vector=f16x32, dtype=np.float32)
    same_numbers(out, ALL_16_BITS.view(np.float16).astype(np.float32))


def test_float32_narrows_to_the_nearest_even_float16():
    """Every float16, every midpoint between two, and what lies just beside them."""
    finite = ALL_16_BITS[:31744].view(np.float16).astype(np.float32)
    middle = ((finite[:-1].astype(np.float64) + finite[1:]) / 2).astype(np.float32)
    near = [np.nextafter(middle, np.float32(side)) for side in (0, np.inf)]
    x = np.concatenate([finite, middle, *near, np.float32([65519, 65520, 1e9, np.inf, np.nan])])
    x = np.concatenate([x, -x])
    x = np.resize(x, len(x) // 16 * 16 + 16).astype(np.float32)
    out = converted(f32x16, f16x16, x, np.uint16).view(np.float16)
    with np.errstate(over="ignore"):
        same_numbers(out, x.astype(np.float16))


def test_float32_narrows_to_the_nearest_even_bfloat16():
    """Bit for bit as the format BF16 does: every upper half, with lower ones about the midpoint."""
    lower = np.uint32([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    x = (ALL_16_BITS.astype(np.uint32)[:, None] << 16 | lower).view(np.float32).ravel()
    for source, target in ((f32x32, bf16x32), (f32x16, bf16x16)):
        out = converted(source, target, x, np.uint16)
        assert_array_equal(out, encode_bf16(x).view(np.uint16))


def test_reductions_fold_lanes_in_halves():
    """The order of a sum is fixed, so its bits are; the largest lane passes over NaN."""

    @njit
    def fold(x):
        return sum_lanes(load(f32x16, x, 0)), max_lanes(load(f32x16, x, 0))

    for seed in range(20):
        x = np.random.default_rng(seed).standard_normal(16, np.float32)
        halves = x
        while len(halves) > 1:
            half = len(halves) // 2
            halves = halves[:half] + halves[half:]
        assert fold(x) == (halves[0], x.max())
    x[5] = np.nan
    assert np.isnan(fold(x)[0])


exp_of = njit(lambda v: exp(v))
exp_of_negative_of = njit(lambda v: exp_of_negative(v))


def test_exp_is_within_two_units_in_the_last_place():
    """Over two million arguments from the smallest normal result to the largest."""
    x = np.linspace(-87.336, 88.72283, 2**21).astype(np.float32)
    out = swept(exp_of, x)
    exact = np.exp(x.astype(np.float64))
    unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(out - exact) / unit) <= 2


def test_exp_of_special_arguments():
    """Infinities, NaN and everything out of range, subnormal results flushed to zero."""
    x = np.full(16, 0, np.float32)
    x[:10] = -np.inf, np.inf, np.nan, -0.0, -88, -3e38, 89, 3e38, 1e-45, 88.7228
    out = swept(exp_of, x)
    with np.errstate(over="ignore"):
        largest = np.exp(np.float64(np.float32(88.7228)))
    assert_array_equal(out[:9], np.float32([0, np.inf, np.nan, 1, 0, 0, np.inf, np.inf, 1]))
    assert out[9] == pytest.approx(largest, rel=2**-22)


def test_exp_of_non_positive_equals_exp():
    """To the bit, also below the smallest normal result; NaN with any payload stays NaN."""
    bits = np.arange(0x80000000, 0xFF800000 + 1, 1009, np.uint32)
    odd = np.resize(np.uint32([0xFF800000, 0x7FC00001, 0xFFC12345, 0x7FFFFFFF, 0]), 16)
    x = np.append(bits[: len(bits) // 16 * 16], odd).view(np.float32)
    assert_array_equal(swept(exp_of_negative_of, x), swept(exp_of, x))


def test_unknown_conversions_are_refused():
    """A conversion that no kernel needs is an error when compiled, never a guess."""
    assert ir.VectorType(ir.FloatType(), 16) == f32x16.ir
    with pytest.raises(Exception, match="no conversion from i8x32"):
        converted(i8x32, f16x32, np.zeros(32, np.int8), np.uint16)


@njit
def sums_through_the_stack(x):
    small, large = stack(np.int32, 3), stack(np.float32, 1000)
    for i in range(3):
        small[i] = i
    for i in range(1000):
        large[i] = x[i]
    total = np.float32(0)
    for i in range(1000):
        total += large[999 - i]
    addresses = small.ctypes.data % 64 + large.ctypes.data % 64
    return total, small[0] + 10 * small[1] + 100 * small[2], addresses, len(large)


def test_the_stack_holds_arrays():
    """They keep what is written, do not overlap, and begin on a cache line."""
    x = np.arange(1000, dtype=np.float32)
    assert sums_through_the_stack(x) == (x.sum(), 210, 0, 1000)


@njit
def first_of(a, b, count, out):
    store(out, 0, first_lanes(load(f32x16, a, 0), count, load(f32x16, b, 0)))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 99])
def test_lanes_below_the_count_are_selected(count):
    """Lanes below the count come from one vector, the rest from the other, NaN too."""
    a, b = np.arange(16, dtype=np.float32), np.full(16, np.nan, np.float32)
    out = np.empty(16, np.float32)
    first_of(a, b, count, out)
    assert_array_equal(out, np.where(np.arange(16) < count, a, b))
