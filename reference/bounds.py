"""The error analysis that bounds share (Higham, Accuracy and Stability, chapter 3).

A kernel computes in float32, whose unit roundoff is U. A sum or product chain of n roundings has
a relative error of at most gamma(n), in whatever order it is evaluated and with or without fused
multiply-add. Results below the normal range lose absolute precision instead: TINY each.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

U = 2.0**-24
TINY = 2.0**-126  # a kernel may flush subnormal numbers to zero
U64 = 2.0**-53  # of float64, where a kernel sums in it
FACTOR = 2.0**55  # of numbers as large, products and sums of 2^17 products are far below 2^128
EXP = 4 * U  # relative error of a good float32 exp, its argument's rounding aside


def gamma(n: float, u: float = U) -> float:
    return n * u / (1 - n * u)


def truncating(n: float, together: int = 1) -> float:
    """The growth of a sum of n exact addends where any number of at least `together` is added to
    the sum at once and what does not fit is cut off, as in tensor cores (Fasi et al., Numerical
    behavior of NVIDIA tensor cores, PeerJ CS 7:e330).

    Of j addends all but the largest lose less than a unit of its last place, 2 U times it, and
    their sum less than one of its own: together j * 2 U of their magnitudes. A tree of sums with n
    leaves, of which each sum has `together`, has at most n + n / together addends.
    """
    return gamma(2 * (n + n / together))


def relative(expected: Any, roundings: float) -> Array:
    """|expected| times the growth of so many roundings."""
    return np.abs(np.asarray(expected, np.float64)) * gamma(roundings) + TINY
