"""The rotary frequencies of a model and the ways of stretching them to longer contexts.

Each function gives float64 [pairs] in radians a position. A model's frequencies are made once at
load; they are not an op.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def plain(dims: int, base: float) -> Array:
    """base^(-2i / dims) for i < dims / 2."""
    return np.asarray(float(base) ** (-np.arange(0, dims, 2, dtype=np.float64) / dims))


def interpolated(frequencies: Array, factor: float) -> Array:
    """Position interpolation (Chen et al., arXiv 2306.15595): positions divided by `factor`."""
    return frequencies / factor


def ntk_base(base: float, alpha: float, dims: int) -> float:
    """The NTK-aware base: base * alpha^(dims / (dims - 2))."""
    return float(base * alpha ** (dims / (dims - 2)))


def divided(frequencies: Array, divisors: Array) -> Array:
    """Frequencies divided one by one, as GGUF's tensor rope_freqs says."""
    return frequencies / divisors


def llama3_divisors(
    frequencies: Array, factor: float, low: float, high: float, original_context: int
) -> Array:
    """Llama 3.1's divisors: 1 for short waves, `factor` for long ones, a blend between."""
    wavelength = 2 * np.pi / frequencies
    blend = (original_context / wavelength - low) / (high - low)
    smooth = 1 / ((1 - blend) / factor + blend)
    short, long = wavelength < original_context / high, wavelength > original_context / low
    return np.asarray(np.where(short, 1.0, np.where(long, factor, smooth)))


def yarn(
    frequencies: Array,
    base: float,
    factor: float,
    original_context: int,
    *,
    extrapolation: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> Array:
    """YaRN (Peng et al., arXiv 2309.00071): interpolate slow dimensions, keep fast ones."""
    dims = 2 * len(frequencies)

    def correction(rotations: float) -> float:
        ratio = original_context / (rotations * 2 * np.pi)
        return float(dims * np.log(ratio) / (2 * np.log(base)))

    low = max(0.0, np.floor(correction(beta_fast)))
    high = min(dims - 1.0, np.ceil(correction(beta_slow)))
    ramp = (np.arange(len(frequencies)) - low) / max(0.001, high - low)
    keep = (1 - ramp.clip(0, 1)) * extrapolation
    return np.asarray(frequencies / factor * (1 - keep) + frequencies * keep)


def yarn_magnitude(factor: float, attention_factor: float = 1.0) -> float:
    """YaRN's multiplier of cosines and sines: attention_factor * (1 + 0.1 ln factor)."""
    return float(attention_factor * (1 + 0.1 * np.log(factor)))
