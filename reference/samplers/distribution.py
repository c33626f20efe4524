"""Shared by the samplers: distributions, cases, and which decisions rounding may change.

A filter keeps a logit exactly or sets it to -inf, so its bound is zero. It compares sums of float32
exponentials with a threshold; if exact arithmetic is nearer to the threshold than a kernel's
rounding error, the other decision is right as well, and the judge accepts both.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from reference.bounds import EXP, TINY, U, gamma
from reference.op import Arguments, Array, Case, Cost, Shape
from reference.softmax import softmax
from reference.values import NOT_FINITE

SIZES = (1, 2, 3, 8, 15, 16, 17, 31, 33, 65, 127, 257, 1000, 2047, 4096, 4099)
VOCABULARIES: tuple[Shape, ...] = ({"vocab": 32000}, {"vocab": 128256}, {"vocab": 256000})
LARGEST = 2.0**126  # magnitude of a logit, so that the difference of two is finite
ON_LOGITS: dict[str, Any] = {
    "axes": {"vocab": SIZES},
    "corners": VOCABULARIES,
    "largest": LARGEST,
    "varying": (),
}
NEARLY_ONE = 1 - 2.0**-53
LEAST = 2.0**-1074  # the smallest float64 above zero
U64 = 2.0**-53  # unit roundoff of float64

T = TypeVar("T")


def mask_tokens(logits: Array, keep: Array) -> Array:
    """Mask: the logits where `keep`, -inf elsewhere. Both [vocab]."""
    return np.where(keep, logits, -np.inf)


def most_likely_first(logits: Array) -> Array:
    """Token ids by descending logit, ties by ascending id. [vocab] -> int64 [vocab]."""
    return np.argsort(-logits, kind="stable")


def depths(logits: Array) -> Array:
    """max - logit in nats, infinite for removed tokens. [vocab] -> float64 [vocab]."""
    logits = logits.astype(np.float64)
    return np.asarray(logits.max() - logits)


def mean(p: Array, values: Array) -> float:
    """The expectation of `values` under p, without tokens of p = 0. Both [vocab]."""
    return float(np.sum(p[p > 0] * values[p > 0]))


def relative_errors(logits: Array) -> Array:
    """Relative errors of exp(logit - max) in a kernel: float32 subtraction, exp, then additions.

    Lanes are reduced in float32 (8 roundings leave room for a product), the rest in float64.
    """
    depth = depths(logits)
    depth = np.where(np.isfinite(depth), depth, 0)
    return np.asarray(EXP + U * depth + gamma(8) + len(logits) * 2 * U64)


def total_error(logits: Array) -> float:
    """Relative error of the sum of all exp(logit - max): the mean of its terms' under p."""
    return mean(softmax(logits), relative_errors(logits)) + len(logits) * TINY


def undecided(logits: Array, expected: Array, doubtful: Array) -> dict[str, Array]:
    """The opposite decision where it is doubtful: a dropped logit kept, a kept one dropped."""
    other = np.where(np.isneginf(expected), logits, -np.inf)
    return {"out": np.where(doubtful, other, expected)[None]}


def cut_undecided(logits: Array, expected: Array, cut: float, error: float) -> dict[str, Array]:
    """Tokens that a filter `logit >= cut` may keep or drop, if its cut has this error."""
    return undecided(logits, expected, np.abs(logits - np.float64(cut)) <= error)


def prefix_undecided(
    logits: Array, expected: Array, score: Array, score_error: Array, limit: float
) -> dict[str, Array]:
    """Tokens that a filter "by ascending score until the limit is reached" may keep or drop.

    Equal logits have equal scores and are ordered by id. Others may swap if their scores differ by
    less than both errors. So the mass before a token lies between that of tokens certainly before
    it and that of tokens possibly before it, plus or minus the sums' rounding.
    score, score_error [vocab]; limit as a fraction of the whole mass.
    """
    p = softmax(logits)
    values, first, group = np.unique(logits, return_index=True, return_inverse=True)
    mass = np.bincount(group, p, len(values))
    order = np.argsort(score[first], kind="stable")
    sorted_score = score[first][order]
    running = np.concatenate([[0.0], np.cumsum(mass[order])])
    gap = 2 * score_error[first]
    surely = running[np.searchsorted(sorted_score, score[first] - gap, "left")]
    possibly = running[np.searchsorted(sorted_score, score[first] + gap, "right")] - mass

    by_group = np.argsort(group, kind="stable")
    inside = np.empty(len(p))
    inside[by_group] = np.cumsum(p[by_group]) - p[by_group]
    among_equals = inside - (np.cumsum(mass) - mass)[group]
    error = 2 * total_error(logits)
    lower, upper = surely[group] + among_equals - error, possibly[group] + among_equals + error
    return undecided(logits, expected, (lower <= limit) & (limit <= upper))


def no_token(inputs: Arguments) -> str:
    """The complaint of ops that return a token: at least one must be possible."""
    logits = inputs["logits"]
    if not logits.size or np.isnan(logits).any() or logits.max() == -np.inf:
        return "logits holds NaN, or only removed tokens"
    return ""


def exact(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """Zero: a logit is unchanged or -inf; tokens are integers."""
    return {name: np.zeros(value.shape) for name, value in expected.items()}


def option(case: Case, options: Sequence[T]) -> T:
    """The option for the case's seed, in rotation. To be combined with another rotation in all
    ways, their lengths must be coprime."""
    return options[case.seed % len(options)]


def some_logits(case: Case, rng: np.random.Generator) -> Array:
    """Logits of the case's kind, a tenth removed. In rotation they are plain, on a coarse grid
    (ties), half of them equal, all but a few removed, as after top-k, or far from zero."""
    logits, vocab = case.array(rng, case.shape["vocab"]), case.shape["vocab"]
    shaped = option(case, ("plain", "grid", "plateau", "few", "far"))
    if case.values in NOT_FINITE:
        shaped = "plain"
    if shaped == "grid":
        logits = (np.round(logits.astype(np.float64) * 4) / 4).astype(np.float32)
    if shaped == "plateau" or vocab > max(SIZES):
        logits = plateau(logits, rng)
    if shaped == "far":
        logits += np.float32(512)
    removed = rng.random(vocab) < (max(0.1, 1 - 40 / vocab) if shaped == "few" else 0.1)
    removed[rng.integers(vocab)] = False
    removed &= np.isfinite(logits)
    return np.where(removed, np.float32(-np.inf), logits)


def plateau(logits: Array, rng: np.random.Generator) -> Array:
    """Half of them equal: the error of adding many equal float32 numbers one by one does not
    average out as that of random ones does. [vocab] -> [vocab]."""
    return np.where(rng.random(len(logits)) < 0.5, logits[0], logits)


def some_depth(logits: Array, rng: np.random.Generator) -> float:
    """The distance of a random token below the most likely one, in nats."""
    deep = depths(logits)
    return float(rng.choice(deep[np.isfinite(deep)]))


def cost(shape: Shape, format: str | None) -> Cost:
    """Logits are read and written; a few operations for each exponential."""
    return Cost(8 * shape["vocab"], 4 * shape["vocab"])


def token_cost(shape: Shape, format: str | None) -> Cost:
    return Cost(4 * shape["vocab"], 4 * shape["vocab"])
