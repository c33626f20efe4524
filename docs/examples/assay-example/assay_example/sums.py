"""What both norms sum."""

from numba import njit


@njit(inline="always")
def sum_of_squares(row):
    """In float64: the square of a float32 is exact there."""
    total = 0.0
    for value in row:
        total += float(value) * float(value)
    return total
