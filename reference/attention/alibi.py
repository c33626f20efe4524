"""The slopes of attention with linear biases (Press et al., ALiBi, arXiv 2108.12409)."""

from typing import Any

import numpy as np


def alibi_slopes(heads: int, largest: float = 8.0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """float64 [heads]: a geometric series for a power of two, interleaved with the next if not.

    The least slope of a power of two is 2^-largest.
    """
    power = 1 << (heads.bit_length() - 1)
    h = np.arange(heads)
    first = 2.0 ** (-largest / power * (h + 1))
    second = 2.0 ** (-largest / 2 / power * (2 * (h - power) + 1))
    return np.where(h < power, first, second)
