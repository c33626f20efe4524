"""The vectors that kernels are written in: each intrinsic against NumPy."""

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
    extract,
    f16x16,
    f32x16,
    fma,
    high_nibbles,
    i8x32,
    i32x16,
    insert,
    load,
    load_first,
    low_nibbles,
    max_lanes,
    maximum,
    prefetch,
    splat,
    store,
    store_first,
    sum_lanes,
    zero,
)
from kernels.cpu.isa.simd_exp import exp
from kernels.cpu.isa.simd_shuffle import (
    first_lanes,
    fma_rows,
    gather_quarters,
    load_rows,
    stack,
    store_rows,
    transpose_quarters,
)
from kernels.cpu.isa.tiles import zeros
from kernels.provenance import cpu_features
from reference.formats.floats import encode_bf16

f16x32, f32x32 = Vector("f16", 32), Vector("f32", 32)
ALL_16_BITS = np.arange(65536, dtype=np.uint16)


def converted(source: Vector, target: Vector, values: Array, dtype: type) -> Array:
    """All values, through loads of `source`, as lanes of `target`."""
    return swept(njit(lambda v: convert(target, v)), values, vector=source, dtype=dtype)


def test_the_maximum_of_a_nan_is_its_second_argument():
    """Elsewhere it is the larger; what else there is of two vectors test_lanes.py tries."""
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


@pytest.mark.parametrize(("source", "target"), [(f16x32, f32x32), (f16x16, f32x16)], ids=str)
def test_every_float16_widens_exactly(source, target):
    """All 65536 patterns become the float32 of the same value."""
    out = converted(source, target, ALL_16_BITS, np.float32)
    same_numbers(out, ALL_16_BITS.view(np.float16).astype(np.float32))


def test_every_float16_widens_exactly_by_integer_arithmetic():
    """So they do on machines that have no instruction for it."""

    @intrinsic
    def widen(typing, v):
        def codegen(context, builder, signature, values):
            return simd._widen_half(builder, values[0], v.lanes)

        return v.of("f32")(v), codegen

    out = swept(njit(lambda v: widen(v)), ALL_16_BITS, vector=f16x32, dtype=np.float32)
    same_numbers(out, ALL_16_BITS.view(np.float16).astype(np.float32))


def test_every_bfloat16_widens_exactly():
    """All 65536 patterns are the upper halves of their float32."""
    out = converted(bf16x32, f32x32, ALL_16_BITS, np.float32)
    same_numbers(out, (ALL_16_BITS.astype(np.uint32) << 16).view(np.float32))


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


def test_bytes_and_integers_become_floats_and_back():
    """int8 and int32 widen exactly; float32 becomes int32 toward zero."""
    every = np.arange(-128, 128).astype(np.int8)
    assert_array_equal(converted(i8x32, f32x32, every, np.float32), every.astype(np.float32))
    whole = np.random.default_rng(4).integers(-(2**24), 2**24, 160).astype(np.int32)
    assert_array_equal(converted(i32x16, f32x16, whole, np.float32), whole.astype(np.float32))
    x = (whole / 256).astype(np.float32)
    assert_array_equal(converted(f32x16, i32x16, x, np.int32), np.trunc(x).astype(np.int32))


def test_nibbles_of_every_byte():
    """The low and the high half of each byte, both unsigned."""
    every = np.arange(256, dtype=np.uint8)
    for half, meaning in ((low_nibbles, every & 15), (high_nibbles, every >> 4)):
        formula = njit(lambda v, half=half: half(v))
        assert_array_equal(swept(formula, every, vector=i8x32), meaning)


def test_masked_loads_and_stores_touch_only_the_first_lanes():
    """For every count from 0 to 16: lanes beyond it load as zero and are not stored."""

    @njit
    def copy(source, target, offset, count):
        value = load_first(f32x16, source, offset, count)
        store(target, 32, value)
        store_first(target, offset, value, count)

    source = np.arange(100, 148, dtype=np.float32)
    for count in range(17):
        target = np.full(48, -1, np.float32)
        copy(source, target, 3, count)
        first = source[3 : 3 + count]
        assert_array_equal(target[3 : 3 + count], first)
        assert_array_equal(target[32:], [*first, *[0] * (16 - count)])
        assert_array_equal(np.delete(target[:32], np.s_[3 : 3 + count]), -1)


def test_loads_and_stores_need_no_alignment():
    """Offsets count elements of the array, so bytes of a byte array, at any address."""

    @njit
    def copy(source, target, offset):
        store(target, offset, load(f32x16, source, offset))

    source = np.arange(80, dtype=np.uint8)
    for offset in range(16):
        target = np.zeros(80, np.uint8)
        copy(source, target, offset)
        assert_array_equal(target[offset : offset + 64], source[offset : offset + 64])
        assert target.sum() == source[offset : offset + 64].sum()


@pytest.mark.parametrize("locality", [0, 1, 2, 3])
def test_prefetching_changes_nothing(locality):
    """A hint of any locality at any address, far outside the array too, is only that."""

    @njit
    def hint(array):
        for offset in (0, len(array) - 1, len(array), -1, 2**46):
            prefetch(array, offset, locality)
        return array.sum()

    assert hint(np.arange(7, dtype=np.float32)) == 21
    (code,) = hint.inspect_llvm().values()
    assert f"i32 0, i32 {locality}, i32 1)" in code


def test_lanes_can_be_set_and_read():
    """splat, zero, insert and extract, at every lane."""

    @njit
    def place(out, lane):
        store(out, 0, insert(splat(f32x16, np.float32(2)), lane, np.float32(7)))
        store(out, 16, zero(f32x16))
        return extract(load(f32x16, out, 0), lane)

    for lane in range(16):
        out = np.full(32, np.nan, np.float32)
        assert place(out, lane) == 7
        assert_array_equal(np.delete(out[:16], lane), 2)
        assert_array_equal(out[16:], 0)


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


def test_unknown_conversions_are_refused():
    """A conversion that no kernel needs is an error when compiled, never a guess."""
    assert ir.VectorType(ir.FloatType(), 16) == f32x16.ir
    with pytest.raises(Exception, match="no conversion from i8x32"):
        converted(i8x32, f16x32, np.zeros(32, np.int8), np.uint16)


# Vectors by the dozen


@pytest.mark.parametrize(
    ("operation", "axes"), [(transpose_quarters, (2, 1, 0)), (gather_quarters, (1, 0, 2))]
)
def test_four_vectors_become_others_by_quarters(operation, axes):
    """Transposed, vector i has columns i, 4 + i, 8 + i and 12 + i of four rows; gathered, quarter i
    of each; NaN and all."""

    @njit
    def moved(matrix, out):
        a, b, c, d = load_rows(zeros(f32x16, 4), matrix, 0, 16)
        store_rows(out, 0, 16, operation(a, b, c, d))

    matrix, out = np.arange(64, dtype=np.float32), np.empty(64, np.float32)
    matrix[27] = np.nan
    moved(matrix, out)
    assert_array_equal(out.reshape(4, 4, 4), matrix.reshape(4, 4, 4).transpose(axes))


@njit
def outer(a, b, stride, out):
    sums = load_rows(zeros(f32x16, 3), out, 2, 40)
    store_rows(out, 2, 40, fma_rows(sums, load(f32x16, a, 1), b, 1, stride))


@pytest.mark.parametrize("stride", [1, 7])
def test_rows_are_loaded_added_to_and_stored(stride):
    """load_rows, fma_rows and store_rows touch just their rows, at any stride."""
    rng = np.random.default_rng(stride)
    a, b = rng.integers(-9, 9, 17).astype(np.float32), rng.integers(-9, 9, 16).astype(np.float32)
    before = rng.integers(-9, 9, (3, 40)).astype(np.float32)
    out = before.copy()
    outer(a, b, stride, out.reshape(-1))
    before[:, 2:18] += np.outer(b[1 : 2 + 2 * stride : stride], a[1:])
    assert_array_equal(out, before)


@njit
def sums_by_way_of_the_stack(x):
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
    assert sums_by_way_of_the_stack(x) == (x.sum(), 210, 0, 1000)


@njit
def first_of(a, b, count, out):
    store(out, 0, first_lanes(load(f32x16, a, 0), count, load(f32x16, b, 0)))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 99])
def test_first_lanes_are_kept(count):
    """Lanes below the count come from one vector, the rest from the other, NaN too."""
    a, b = np.arange(16, dtype=np.float32), np.full(16, np.nan, np.float32)
    out = np.empty(16, np.float32)
    first_of(a, b, count, out)
    assert_array_equal(out, np.where(np.arange(16) < count, a, b))
