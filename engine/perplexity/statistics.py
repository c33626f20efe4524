"""From tokens' NLL to the figures that llama.cpp prints: means, errors, percentiles."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.perplexity.scores import Compared, Scores

Array = np.ndarray[Any, np.dtype[np.float64]]
DIVERGENCE_SHARES = (0.999, 0.99, 0.95, 0.90, 0.50, 0.10, 0.05, 0.01, 0.001)
DELTA_SHARES = (0.999, 0.99, 0.95, 0.90, 0.75, 0.50, 0.25, 0.10, 0.05, 0.01, 0.001)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure and its standard error."""

    value: float
    error: float

    @classmethod
    def mean(cls, samples: Array) -> "Estimate":
        """The mean of independent samples, as far as tokens are; the error is sqrt((mean x^2 -
        (mean x)^2) / (n - 1))."""
        return cls(float(samples.mean()), float(samples.std() / np.sqrt(len(samples) - 1)))

    def exp(self) -> "Estimate":
        """The exponential, with the error by its slope."""
        value = float(np.exp(self.value))
        return Estimate(value, value * self.error)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Over so many tokens: the mean NLL in nats, and its exponential, the perplexity."""

    tokens: int
    nll: Estimate
    perplexity: Estimate

    @classmethod
    def of(cls, nll: Array) -> "Perplexity":
        mean = Estimate.mean(nll)
        return cls(len(nll), mean, mean.exp())


@dataclass(frozen=True, slots=True)
class Comparison:
    """A model beside a base on the same tokens.

    - `base`: the base's perplexity, as its 16-bit log-probabilities have it.
    - `correlation` of -ln p; `log_ratio`, `ratio` and `difference` of the perplexities, whose
      errors are those of pairs.
    - `divergence`: mean KL divergence from the base, in nats; then by percentile, the largest and
      smallest among them.
    - `delta_p`: what the probability of the token that came gained; its root mean square, and by
      percentile.
    - `same_top`: share of tokens at which both hold the same for the likeliest.
    """

    base: Perplexity
    correlation: float
    log_ratio: Estimate
    ratio: Estimate
    difference: Estimate
    divergence: Estimate
    divergence_percentiles: dict[str, float]
    delta_p: Estimate
    delta_p_rms: Estimate
    delta_p_percentiles: dict[str, float]
    same_top: Estimate

    @classmethod
    def of(cls, nll: Array, base: Compared) -> "Comparison":
        ours, theirs = Perplexity.of(nll), Perplexity.of(base.nll)
        log_ratio = Estimate.mean(nll - base.nll)
        delta = np.exp(-nll) - np.exp(-base.nll)
        same = base.same_top.astype(np.float64)
        return cls(
            base=theirs,
            correlation=_correlation(nll, base.nll),
            log_ratio=log_ratio,
            ratio=log_ratio.exp(),
            difference=_difference(ours.perplexity, theirs.perplexity, nll, base.nll),
            divergence=Estimate.mean(base.divergence),
            divergence_percentiles=percentiles(base.divergence, DIVERGENCE_SHARES),
            delta_p=Estimate.mean(delta),
            delta_p_rms=_root(Estimate.mean(delta**2)),
            delta_p_percentiles=percentiles(delta, DELTA_SHARES),
            same_top=Estimate.mean(same),
        )


def _correlation(a: Array, b: Array) -> float:
    deviations = float(a.std() * b.std())
    covariance = float(((a - a.mean()) * (b - b.mean())).mean())
    return covariance / deviations if deviations else 1.0


def _difference(a: Estimate, b: Estimate, nll: Array, base_nll: Array) -> Estimate:
    """a - b, of correlated means."""
    shared = _correlation(nll, base_nll) * a.error * b.error
    return Estimate(a.value - b.value, float(np.sqrt(a.error**2 + b.error**2 - 2 * shared)))


def _root(square: Estimate) -> Estimate:
    value = float(np.sqrt(square.value))
    return Estimate(value, square.error / (2 * value) if value else 0.0)


def percentiles(samples: Array, shares: tuple[float, ...]) -> dict[str, float]:
    """By name, from the maximum down to the minimum, linearly interpolated between samples."""
    found = np.quantile(samples, shares).tolist()
    named = {f"{100 * share:g}%": value for share, value in zip(shares, found, strict=True)}
    ends = float(samples.max()), float(samples.min())
    return {"maximum": ends[0], **named, "minimum": ends[1]}


@dataclass(slots=True)
class Tally:
    """Accumulates passages' scores, with the running perplexity after each."""

    scores: list[Scores] = field(default_factory=list)
    running: list[float] = field(default_factory=list)
    _tokens: int = 0
    _nll: float = 0.0

    def add(self, scores: Scores) -> None:
        self.scores.append(scores)
        self._tokens += len(scores.nll)
        self._nll += float(scores.nll.sum())
        self.running.append(float(np.exp(self._nll / self._tokens)))

    @property
    def nll(self) -> Array:
        return np.concatenate([s.nll for s in self.scores])

    def perplexity(self) -> Perplexity:
        return Perplexity.of(self.nll)

    def comparison(self, exact: "Tally | None" = None) -> Comparison | None:
        """With the base, if there was one; `exact` has its unrounded NLL."""
        bases = [s.base for s in self.scores if s.base]
        if not bases:
            return None
        nll, divergence, same = (
            np.concatenate(parts)
            for parts in zip(*((b.nll, b.divergence, b.same_top) for b in bases), strict=True)
        )
        return Comparison.of(self.nll, Compared(exact.nll if exact else nll, divergence, same))
