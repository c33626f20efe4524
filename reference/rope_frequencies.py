"""RoPE frequencies theta_i = base^(-2i / dims) of a model, and the methods of context extension.

Each function returns float64 [pairs] in radians a position. Frequencies are computed once at load;
they are not an op.
"""

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def plain(dims: int, base: float) -> Array:
    """base^(-2i / dims) for i < dims / 2, by the C library's pow, whose bits are the same on every
    machine, unlike NumPy's, which depend on the CPU's vector width."""
    return np.array([math.pow(base, -i / dims) for i in range(0, dims, 2)])


def interpolated(frequencies: Array, factor: float) -> Array:
    """Position interpolation (Chen et al., arXiv 2306.15595): positions divided by `factor`."""
    return frequencies / factor


def ntk_base(base: float, alpha: float, dims: int) -> float:
    """The NTK-aware base: base * alpha^(dims / (dims - 2))."""
    return float(base * alpha ** (dims / (dims - 2)))


def divided(frequencies: Array, divisors: Array) -> Array:
    """Frequencies divided elementwise, as by GGUF's tensor rope_freqs."""
    return frequencies / divisors


def llama3_divisors(
    frequencies: Array, factor: float, low: float, high: float, original_context: int
) -> Array:
    """Llama 3.1's divisors: 1 for short wavelengths, `factor` for long ones, a blend between."""
    wavelength = 2 * np.pi / frequencies
    blend = (original_context / wavelength - low) / (high - low)
    smooth = 1 / ((1 - blend) / factor + blend)
    short, long = wavelength < original_context / high, wavelength > original_context / low
    return np.asarray(np.where(short, 1.0, np.where(long, factor, smooth)))


def yarn_range(
    dims: int,
    base: float,
    original_context: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncated: bool = True,
) -> tuple[float, float]:
    """The pairs between which YaRN's ramp goes from original to interpolated frequencies: those
    that make `beta_fast` and `beta_slow` turns within the original context; `truncated` to whole
    pairs, except in gpt-oss."""

    def correction(rotations: float) -> float:
        ratio = original_context / (rotations * 2 * np.pi)
        return float(dims * np.log(ratio) / (2 * np.log(base)))

    low, high = correction(beta_fast), correction(beta_slow)
    if truncated:
        low, high = np.floor(low), np.ceil(high)
    return max(0.0, float(low)), min(dims - 1.0, float(high))


def yarn(
    frequencies: Array,
    base: float,
    factor: float,
    original_context: int,
    *,
    extrapolation: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncated: bool = True,
) -> Array:
    """YaRN (Peng et al., arXiv 2309.00071): interpolate low frequencies, keep high ones."""
    dims = 2 * len(frequencies)
    low, high = yarn_range(dims, base, original_context, beta_fast, beta_slow, truncated)
    ramp = (np.arange(len(frequencies)) - low) / max(0.001, high - low)
    keep = (1 - ramp.clip(0, 1)) * extrapolation
    return np.asarray(frequencies / factor * (1 - keep) + frequencies * keep)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """YaRN's factor of cosines and sines, 1 + 0.1 scale ln factor; 1 if factor <= 1.

    `scale` is called mscale in transformers.
    """
    return float(1 + 0.1 * scale * np.log(factor)) if factor > 1 else 1.0
