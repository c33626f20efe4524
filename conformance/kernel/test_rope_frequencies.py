"""RoPE frequencies and ALiBi slopes compared with published values, at the ends of each scaling.
Models with each of them are compared with transformers in llama/test_peer_goldens.py."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from reference import rope_frequencies
from reference.attention.alibi import alibi_slopes

DIMS = 128


@pytest.mark.parametrize("base", [1e4, 5e5, 1e6])
def test_plain_frequencies(base):
    """Pair i rotates by base^(-2i / dims) a position."""
    expected = [1.0 / base ** (i / DIMS) for i in range(0, DIMS, 2)]
    assert_allclose(rope_frequencies.plain(DIMS, base), expected, rtol=1e-14)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3(factor):
    """Llama 3.1 keeps short wavelengths, up to a quarter of the original context, divides those
    beyond the context by the factor, and interpolates smoothly between."""
    frequencies = rope_frequencies.plain(DIMS, 5e5)
    divisors = rope_frequencies.llama3_divisors(frequencies, factor, 1.0, 4.0, 8192)
    wavelengths = 2 * math.pi / frequencies
    assert (divisors[wavelengths < 8192 / 4] == 1).all()
    assert (divisors[wavelengths > 8192] == factor).all()
    between = (wavelengths > 8192 / 4) & (wavelengths < 8192)
    smooth = (8192 / wavelengths[between] - 1) / (4 - 1)
    expected = 1 / ((1 - smooth) / factor + smooth)
    assert_allclose(divisors[between], expected, rtol=1e-13)


@pytest.mark.parametrize(("base", "factor", "original"), [(1e4, 16.0, 4096), (1e6, 4.0, 32768)])
def test_yarn(base, factor, original):
    """Pairs with more than 32 rotations in the original context are kept, those with less than one
    are interpolated, with a linear ramp between."""
    frequencies = rope_frequencies.plain(DIMS, base)
    parts = (1 - rope_frequencies.yarn(frequencies, base, factor, original) / frequencies) / (
        1 - 1 / factor
    )
    fast, slow = (DIMS / 2 * math.log(original / (t * 2 * math.pi), base) for t in (32, 1))
    expected = (np.arange(DIMS // 2) - math.floor(fast)) / (math.ceil(slow) - math.floor(fast))
    assert_allclose(parts, expected.clip(0, 1), rtol=0, atol=1e-13)


def test_yarn_magnitude():
    """A factor of 16 scales cosines and sines by 1.277; one of 1 or less changes nothing."""
    assert rope_frequencies.yarn_magnitude(1.0) == rope_frequencies.yarn_magnitude(0.5) == 1
    assert rope_frequencies.yarn_magnitude(16.0) == pytest.approx(0.1 * math.log(16) + 1.0)
    assert rope_frequencies.yarn_magnitude(16.0, 2.0) == pytest.approx(0.2 * math.log(16) + 1.0)


def test_linear_scaling_divides_positions():
    """Interpolated by 4, position 4 rotates as position 1 did."""
    frequencies = rope_frequencies.plain(DIMS, 1e4)
    assert_array_equal(4 * rope_frequencies.interpolated(frequencies, 4.0), frequencies)


def test_ntk_scaling():
    """The NTK-aware base divides the lowest frequency by alpha and keeps the highest."""
    base = rope_frequencies.ntk_base(1e4, 8.0, DIMS)
    before, after = rope_frequencies.plain(DIMS, 1e4), rope_frequencies.plain(DIMS, base)
    assert after[0] == before[0]
    assert_allclose(after[-1], before[-1] / 8.0, rtol=1e-12)


def test_alibi_slopes_of_the_paper():
    """8 heads have 1/2 to 1/256; 12 have those and every other one of 16 heads' slopes. MPT's file
    may set the exponent of the smallest slope."""
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert_array_equal(alibi_slopes(8), eight)
    assert_allclose(alibi_slopes(12), [*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-15)
    assert_allclose(alibi_slopes(16), [2 ** (-0.5 * (h + 1)) for h in range(16)], rtol=1e-15)
    assert_array_equal(alibi_slopes(1), [2.0**-8])
    assert_allclose(alibi_slopes(6, 4.0), 2.0 ** -np.array([1, 2, 3, 4, 0.5, 1.5]), rtol=1e-15)
