"""x86-64 instructions compared with NumPy, where this CPU has them."""

from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import njit
from numpy.testing import assert_array_equal

from conformance.support.cross_compile import python_for
from conformance.support.special_numbers import flush, same_numbers, swept
from kernels.cpu.isa.simd import bf16x32, f32x16, i8x32, i8x64, i32x8, i32x16, load, store
from kernels.cpu.isa.simd_x86 import dot2, dot4, to_unsigned
from kernels.provenance import cpu_features
from reference.formats.floats import decode_bf16, encode_bf16

Array = np.ndarray[Any, np.dtype[Any]]
EVERY_BYTE = np.arange(-128, 128).astype(np.int8)
FULL_RANGE = np.iinfo(np.int32).min, np.iinfo(np.int32).max
X86 = llvm.get_process_triple().startswith("x86_64")
VNNI, AVX_VNNI = {"avx512vnni"}, {"avxvnni"}


def needs(*choices: set[str]) -> pytest.MarkDecorator:
    """Skip, saying so, where this CPU has none of these sets of features."""
    names = " or ".join(" and ".join(sorted(features)) for features in choices)
    missing = not any(features <= cpu_features() for features in choices)
    return pytest.mark.skipif(missing, reason=f"this CPU lacks {names}")


def dots(operation: Any, lanes: int, sums: Array, unsigned: Array, signed: Array) -> Array:
    """operation(sums, unsigned, signed) over whole arrays, vectors of `lanes` int32 at a time."""
    words, bytes_ = (i32x16, i8x64) if lanes == 16 else (i32x8, i8x32)

    @njit
    def sweep(sums, unsigned, signed, out):
        for i in range(0, len(sums), lanes):
            u, s = load(bytes_, unsigned, 4 * i), load(bytes_, signed, 4 * i)
            store(out, i, operation(load(words, sums, i), u, s))

    out = np.empty_like(sums)
    sweep(sums, unsigned, signed, out)
    return out


def wrapped(sums: Array, unsigned: Array, signed: Array) -> Array:
    """What a dot of four bytes is, modulo 2^32."""
    products = unsigned.astype(np.int64) * signed
    return (sums + products.reshape(-1, 4).sum(axis=1)).astype(np.int32)


def bytes_between(low: int, high: int, count: int, dtype: type) -> Array:
    """Random bytes of this range; a quarter of them, and all of the first 256, are its ends."""
    rng = np.random.default_rng([low + 128, high])
    values = rng.integers(low, high + 1, count)
    ends = rng.random(count) < 0.25
    ends[:256] = True
    values[ends] = rng.choice([low, high], ends.sum())
    return values.astype(dtype)


@pytest.mark.parametrize(
    ("operation", "lanes", "largest"),
    [
        pytest.param(dot4, 16, 255, id="dot4-512", marks=needs(VNNI)),
        pytest.param(dot4, 8, 255, id="dot4-256", marks=needs(AVX_VNNI, VNNI | {"avx512vl"})),
    ],
)
def test_dots_of_four_bytes_are_exact(operation, lanes, largest):
    """Every allowed byte occurs, the ends of the range most of all; sums wrap around."""
    unsigned = bytes_between(0, largest, 4 * 4096, np.uint8)
    signed = bytes_between(-128, 127, 4 * 4096, np.int8)
    sums = np.random.default_rng(0).integers(*FULL_RANGE, 4096, np.int32, endpoint=True)
    out = dots(operation, lanes, sums, unsigned, signed)
    assert_array_equal(out, wrapped(sums, unsigned, signed))


DOT4 = """
from numba import njit
from kernels.cpu.isa.simd import i8x32, i32x8, load, store
from kernels.cpu.isa.simd_x86 import dot4

@njit("void(i4[::1], u1[::1], i1[::1])")
def add(sums, unsigned, signed):
    store(sums, 0, dot4(load(i32x8, sums, 0), load(i8x32, unsigned, 0), load(i8x32, signed, 0)))

print(*add.inspect_asm().values())
"""


@pytest.mark.skipif(not X86, reason="this is no x86-64")
def test_dot4_needs_no_avx512():
    """On a CPU with AVX-VNNI alone it is that instruction, whatever this CPU has."""
    assert "{vex}\tvpdpbusd" in python_for("haswell", {"avx2", "avxvnni"}, DOT4)


def test_signed_bytes_become_unsigned():
    """Every signed byte is raised by 128."""
    formula = njit(lambda v: to_unsigned(v))
    out = swept(formula, EVERY_BYTE, vector=i8x32, dtype=np.uint8)
    assert_array_equal(out, np.arange(256))


def bf16_numbers(seed: int, count: int, exponents: int) -> Array:
    """bfloat16 of about 2^-exponents to 2^exponents, and one in 16 any pattern there is."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(count) * 2.0 ** rng.integers(-exponents, exponents, count)
    patterns = encode_bf16(x.astype(np.float32)).view(np.uint16)
    return np.where(rng.random(count) < 1 / 16, rng.integers(0, 65536, count), patterns).astype(
        np.uint16
    )


@needs({"avx512bf16"})
@pytest.mark.parametrize("exponents", [1, 10, 60, 126])
def test_dots_of_two_bfloat16_round_odd_before_even(exponents):
    """Two fused multiply-adds in a row, subnormal numbers as zero, in and out.

    A product is exact in float64 and its sum with a float32 rounds to float32 as if at once.
    """

    @njit
    def sweep(sums, a, b, out):
        for i in range(0, len(sums), 16):
            pairs = load(bf16x32, a, 2 * i), load(bf16x32, b, 2 * i)
            store(out, i, dot2(load(f32x16, sums, i), pairs[0], pairs[1]))

    a, b = (bf16_numbers(seed, 2**16, exponents) for seed in (1, 2))
    with np.errstate(all="ignore"):
        sums = decode_bf16(bf16_numbers(3, 2**15, exponents)) * np.float32(1.2345671)
        want = flush(sums)
        for element in (1, 0):
            x, y = (flush(decode_bf16(v[element::2])).astype(np.float64) for v in (a, b))
            want = flush((x * y + want).astype(np.float32))
    out = np.empty_like(sums)
    sweep(sums, a, b, out)
    same_numbers(out, want)
