"""The rotary frequencies of a model and the ways of stretching them to longer contexts.

Each function gives float64 [pairs] in radians a position. A model's frequencies are made once at
load; they are not an op.
"""

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def plain(dims: int, base: float) -> Array:
    """base^(-2i / dims) for i < dims / 2: the C library's powers, which have the same bits on every
    machine, where NumPy's depend on how wide the CPU's vectors are."""
    return np.array([math.pow(base, -i / dims) for i in range(0, dims, 2)])


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


def yarn_range(
    dims: int,
    base: float,
    original_context: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncated: bool = True,
) -> tuple[float, float]:
    """The pairs between which YaRN goes over from kept to interpolated frequencies: those that turn
    `beta_fast` and `beta_slow` times within the original context; `truncated` to whole pairs, as
    all but gpt-oss have them."""

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
    """YaRN (Peng et al., arXiv 2309.00071): interpolate slow dimensions, keep fast ones."""
    dims = 2 * len(frequencies)
    low, high = yarn_range(dims, base, original_context, beta_fast, beta_slow, truncated)
    ramp = (np.arange(len(frequencies)) - low) / max(0.001, high - low)
    keep = (1 - ramp.clip(0, 1)) * extrapolation
    return np.asarray(frequencies / factor * (1 - keep) + frequencies * keep)


def yarn_magnitude(factor: float, scale: float = 1.0) -> float:
    """YaRN's multiplier of cosines and sines, 1 + 0.1 scale ln factor; 1 unless they are stretched.

    `scale` is what transformers calls mscale.
    """
    return float(1 + 0.1 * scale * np.log(factor)) if factor > 1 else 1.0
