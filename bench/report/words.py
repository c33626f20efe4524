"""Formats figures and counts for display, with the standard library alone."""

import math
from collections.abc import Sequence


def digits(value: float, count: int = 3) -> str:
    """So many significant digits, with thousands separated: 12.3, 1,234, 0.00123."""
    if not math.isfinite(value):
        return "—"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{count - 1}e}")  # rounded first, for 9.996 has other digits than 10.0
    places = count - 1 - math.floor(math.log10(abs(rounded)))
    if abs(rounded) < 1e-4:
        return f"{value:.{count - 1}e}"
    return f"{rounded:,.{max(0, places)}f}"


def duration(seconds: float) -> str:
    """Seconds in a suitable unit: 1.23 ms."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if float(f"{seconds:.2e}") >= size:
            return f"{digits(seconds / size)} {unit}"
    return f"{digits(seconds / 1e-9)} ns"


def plural(number: int, noun: str) -> str:
    """1 kernel, 2 kernels."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def listed(words: Sequence[str], most: int = 6) -> str:
    """a, b, c and 4 more."""
    if len(words) <= most:
        return ", ".join(words)
    return f"{', '.join(words[:most])} and {len(words) - most} more"
