"""Error analysis shared by the bounds (Higham, Accuracy and Stability, chapter 3).

Kernels compute in float32 with unit roundoff U. A chain of n sums or products has a relative error
of at most gamma(n) = n u / (1 - n u), in any order of evaluation and with or without fused
multiply-add. Results below the normal range have an absolute error instead: TINY each.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

U = 2.0**-24
TINY = 2.0**-126  # a kernel may flush subnormal numbers to zero
U64 = 2.0**-53  # unit roundoff of float64, for kernels that accumulate in it
FACTOR = 2.0**55  # largest factor: sums of 2^17 products of two stay far below 2^128
ALIGNED = 2.0**-14  # smallest normal float16, as which tensor cores align smaller ones
EXP = 4 * U  # relative error of a good float32 exp for an exact argument


def gamma(n: float, u: float = U) -> float:
    return n * u / (1 - n * u)


def gamma_truncated(n: float, together: int = 1) -> float:
    """Relative error of a sum of n exact terms, if at least `together` terms are added at once and
    the bits beyond the largest term's precision are truncated, as on tensor cores (Fasi et al.,
    Numerical behavior of NVIDIA tensor cores, PeerJ CS 7:e330).

    Of j terms all but the largest lose less than a unit of its last place, 2 U times it, and their
    sum less than one of its own: together j * 2 U of their magnitudes. A tree of sums with n
    leaves, each sum of at least `together` terms, has at most n + n / together terms.

    Products of float16 are aligned by the exponents of their factors, before any normalising: a
    factor below ALIGNED counts as large as that, zero included. An H200 adds 16 of them at once
    and keeps two bits more than float32 (docs/decisions/026).
    """
    return gamma(2 * (n + n / together))


def relative(expected: Any, roundings: float) -> Array:
    """|expected| times the relative error of this many roundings."""
    return np.abs(np.asarray(expected, np.float64)) * gamma(roundings) + TINY
