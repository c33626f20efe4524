"""The sum of squares of both norms."""

from numba import njit


@njit(inline="always")
def sum_of_squares(row):
    """Sums in float64, in which the square of a float32 is exact."""
    total = 0.0
    for value in row:
        total += float(value) * float(value)
    return total
