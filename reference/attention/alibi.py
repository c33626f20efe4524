"""ALiBi: the slopes of attention with linear biases (Press et al., arXiv 2108.12409)."""

from typing import Any

import numpy as np


def alibi_slopes(heads: int, largest: float = 8.0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """float64 [heads]: 2^(-largest i / heads), i = 1 .. heads, if heads is a power of two;
    otherwise those of the power below, followed by every other slope of the next power."""
    power = 1 << (heads.bit_length() - 1)
    h = np.arange(heads)
    first = 2.0 ** (-largest / power * (h + 1))
    second = 2.0 ** (-largest / 2 / power * (2 * (h - power) + 1))
    return np.where(h < power, first, second)
