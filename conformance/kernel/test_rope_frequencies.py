"""Frequencies and slopes against the published formulas, typed here a second time.

They follow Meta's `apply_scaling`, transformers' `modeling_rope_utils` and the ALiBi paper, one
number at a time, and share no line with the reference.
"""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from reference import rope_frequencies
from reference.alibi import alibi_slopes

DIMS = 128


def published_plain(base: float) -> list[float]:
    return [1.0 / base ** (i / DIMS) for i in range(0, DIMS, 2)]


def published_llama3(freqs: list[float], scale_factor: float) -> list[float]:
    low_freq_factor, high_freq_factor, old_context_len = 1, 4, 8192
    low_freq_wavelen = old_context_len / low_freq_factor
    high_freq_wavelen = old_context_len / high_freq_factor
    new_freqs = []
    for freq in freqs:
        wavelen = 2 * math.pi / freq
        if wavelen < high_freq_wavelen:
            new_freqs.append(freq)
        elif wavelen > low_freq_wavelen:
            new_freqs.append(freq / scale_factor)
        else:
            smooth = old_context_len / wavelen - low_freq_factor
            smooth /= high_freq_factor - low_freq_factor
            new_freqs.append((1 - smooth) * freq / scale_factor + smooth * freq)
    return new_freqs


def published_yarn(base: float, factor: float, original: int) -> list[float]:
    def find_correction_dim(num_rotations: float) -> float:
        turns = original / (num_rotations * 2 * math.pi)
        return (DIMS * math.log(turns)) / (2 * math.log(base))

    low = max(math.floor(find_correction_dim(32)), 0)
    high = min(math.ceil(find_correction_dim(1)), DIMS - 1)
    if low == high:
        high += 0.001
    out = []
    for i in range(DIMS // 2):
        ramp = min(1.0, max(0.0, (i - low) / (high - low)))
        pos_freq = base ** (2 * i / DIMS)
        extrapolation, interpolation = 1.0 / pos_freq, 1.0 / (factor * pos_freq)
        out.append(interpolation * ramp + extrapolation * (1 - ramp))
    return out


@pytest.mark.parametrize("base", [1e4, 5e5, 1e6])
def test_plain_frequencies(base):
    """Pair i turns by base^(-2i / dims) a position."""
    assert_allclose(rope_frequencies.plain(DIMS, base), published_plain(base), rtol=1e-14)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3(factor):
    """Frequencies over Llama 3.1's divisors are those that its authors publish."""
    frequencies = rope_frequencies.plain(DIMS, 5e5)
    divisors = rope_frequencies.llama3_divisors(frequencies, factor, 1.0, 4.0, 8192)
    ours = rope_frequencies.divided(frequencies, divisors)
    assert_allclose(ours, published_llama3(published_plain(5e5), factor), rtol=1e-13)
    assert divisors[0] == 1
    assert divisors[-1] == factor


@pytest.mark.parametrize(("base", "factor", "original"), [(1e4, 16.0, 4096), (1e6, 4.0, 32768)])
def test_yarn(base, factor, original):
    """YaRN's frequencies are those of transformers, and its ends are kept and interpolated."""
    frequencies = rope_frequencies.plain(DIMS, base)
    ours = rope_frequencies.yarn(frequencies, base, factor, original)
    assert_allclose(ours, published_yarn(base, factor, original), rtol=1e-13)
    assert ours[0] == frequencies[0]
    assert_allclose(ours[-1], frequencies[-1] / factor, rtol=1e-14)


def test_yarn_magnitude():
    """A factor of 16 scales cosines and sines by 1.277; one that does not stretch leaves them
    alone."""
    assert rope_frequencies.yarn_magnitude(1.0) == rope_frequencies.yarn_magnitude(0.5) == 1
    assert rope_frequencies.yarn_magnitude(16.0) == pytest.approx(0.1 * math.log(16) + 1.0)
    assert rope_frequencies.yarn_magnitude(16.0, 2.0) == pytest.approx(0.2 * math.log(16) + 1.0)


def test_linear_scaling_is_division_of_positions():
    """Interpolated by 4, position 4 turns as position 1 did."""
    frequencies = rope_frequencies.plain(DIMS, 1e4)
    assert_array_equal(4 * rope_frequencies.interpolated(frequencies, 4.0), frequencies)


def test_ntk_keeps_the_fastest_pair_and_stretches_the_slowest_by_alpha():
    """The NTK-aware base divides the slowest frequency by alpha and leaves the first alone."""
    base = rope_frequencies.ntk_base(1e4, 8.0, DIMS)
    before, after = rope_frequencies.plain(DIMS, 1e4), rope_frequencies.plain(DIMS, base)
    assert after[0] == before[0]
    assert_allclose(after[-1], before[-1] / 8.0, rtol=1e-12)


def test_alibi_slopes_of_the_paper():
    """8 heads have 1/2 to 1/256; 12 have those and every other one of 16 heads' slopes. MPT may
    name the exponent of the least slope."""
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert_array_equal(alibi_slopes(8), eight)
    assert_allclose(alibi_slopes(12), [*eight, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-15)
    assert_allclose(alibi_slopes(16), [2 ** (-0.5 * (h + 1)) for h in range(16)], rtol=1e-15)
    assert_array_equal(alibi_slopes(1), [2.0**-8])
    assert_allclose(alibi_slopes(6, 4.0), 2.0 ** -np.array([1, 2, 3, 4, 0.5, 1.5]), rtol=1e-15)
