"""The error of a median; a ratio of medians with its interval, and whether a difference means
anything."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 4000
Floats = np.ndarray[Any, np.dtype[np.float64]]
Samples = Sequence[float] | Floats


def relative_error(samples: Sequence[float]) -> float:
    """The standard error of the median over the median, whatever the distribution.

    How many samples lie below the true median is binomial(n, 1/2), so the order statistics one
    standard deviation of it, sqrt(n) / 2, to either side of the middle enclose it two times in
    three.
    """
    n = len(samples)
    if n < 3:
        return math.inf
    ordered = np.sort(samples)
    middle, reach = (n - 1) / 2, math.sqrt(n) / 2
    low = ordered[max(0, math.floor(middle - reach))]
    high = ordered[min(n - 1, math.ceil(middle + reach))]
    error, median = float(high - low) / 2, float(np.median(ordered))
    if not error:
        return 0.0  # also of phases that took no time at all
    return error / median if median else math.inf


@dataclass(frozen=True, slots=True)
class Ratio:
    """median(a) / median(b), and the interval that holds it at the level asked for."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"a ratio lies in its interval: {self.low}, {self.value}, {self.high}")

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def scaled(self, factor: float) -> "Ratio":
        return Ratio(factor * self.value, factor * self.low, factor * self.high)

    @property
    def farthest(self) -> float:
        """How far from 1 the interval reaches, as a factor of at least 1."""
        return max(self.high, 1 / self.low) if self.low > 0 else math.inf

    @property
    def significant(self) -> bool:
        return self.low > 1 or self.high < 1


def ratio(
    a: Samples, b: Samples, *, level: float = 0.95, together: int = 0, seed: int = 0
) -> Ratio:
    """The ratio of medians by bootstrap (percentiles).

    With `together`, a and b were measured in turns, round by round: blocks of so many consecutive
    rounds are resampled, both sides alike, so that disturbances of both cancel and those that last
    longer than a sample count once. Without, each side is resampled by itself.
    """
    return _interval(*_drawn(a, b, together, np.random.default_rng(seed)), level)


def quotient(
    over: tuple[Samples, Samples],
    under: tuple[Samples, Samples],
    *,
    level: float = 0.95,
    together: int = 0,
    seed: int = 0,
) -> Ratio:
    """How many times as large the ratio of the first pair is as that of the second. Each pair was
    measured as for `ratio`, in a race of its own."""
    rng = np.random.default_rng(seed)
    above, drawn_above = _drawn(*over, together, rng)
    below, drawn_below = _drawn(*under, together, rng)
    return _interval(above / below, drawn_above / drawn_below, level)


def _interval(value: float, drawn: Floats, level: float) -> Ratio:
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Ratio(value, min(float(low), value), max(float(high), value))


def _drawn(a: Samples, b: Samples, together: int, rng: np.random.Generator) -> tuple[float, Floats]:
    """The ratio of medians, and the ratios of the resamples."""
    x, y = np.asarray(a, float), np.asarray(b, float)
    if not len(x) or not len(y):
        raise ValueError("a ratio needs samples on both sides")
    if together:
        count = min(len(x), len(y))
        x, y = x[:count], y[:count]
        of_x = of_y = _rounds(rng, count, min(together, count))
    else:
        of_x = rng.integers(0, len(x), (RESAMPLES, len(x)))
        of_y = rng.integers(0, len(y), (RESAMPLES, len(y)))
    drawn = np.median(x[of_x], axis=1) / np.median(y[of_y], axis=1)
    return float(np.median(x) / np.median(y)), drawn


def _rounds(
    rng: np.random.Generator, count: int, together: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Indices [RESAMPLES, count or a little more]: whole blocks of consecutive rounds."""
    blocks = -(-count // together)
    first = rng.integers(0, count - together + 1, (RESAMPLES, blocks))
    return (first[..., None] + np.arange(together)).reshape(RESAMPLES, -1)
