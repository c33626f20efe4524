"""Laws of layer normalisation."""

import numpy as np

from reference.bounds import U, gamma
from reference.op import Apply, Arguments, Array, Case, Law


def mean_is_zero_and_variance_one(apply: Apply, case: Case) -> str:
    """With unit weights, no bias and no eps, every row has mean 0 and variance 1."""
    x = _rows(case)
    hidden = x.shape[1]
    out = apply({"x": x, **_plain(hidden), "eps": 0.0})["out"].astype(np.float64)
    # elements have the error of the mean, and (hidden + 4) / 2 + 5 roundings of their own
    off = gamma(2 * hidden + 16)
    if (np.abs(out.mean(axis=1)) > off).any():
        return f"a row of {hidden} has a mean of {np.abs(out.mean(axis=1)).max()}"
    if (np.abs(out.var(axis=1) - 1) > 2 * off).any():
        return f"a row of {hidden} has a variance off by {np.abs(out.var(axis=1) - 1).max()}"
    return ""


def size_does_not_matter(apply: Apply, case: Case) -> str:
    """Without eps, scaling a row by a power of two changes no bit."""
    x = _rows(case)
    given = {**_plain(x.shape[1]), "eps": 0.0}
    once = apply({"x": x, **given})["out"]
    for factor in (2.0**-30, 2.0**30):
        if not np.array_equal(apply({"x": x * np.float32(factor), **given})["out"], once):
            return f"rows scaled by {factor} give other bits"
    return ""


def place_does_not_matter(apply: Apply, case: Case) -> str:
    """Adding an integer to rows of integers, exactly, changes nothing but the rounding of their
    means."""
    rng, hidden = case.rng(), max(16, case.shape["hidden"])
    x = rng.integers(-512, 512, (3, hidden)).astype(np.float32)
    given = {**_plain(hidden), "eps": 1e-5}
    before = apply({"x": x, **given})["out"]
    for shift in (16, -1024):
        off = np.abs(apply({"x": x + np.float32(shift), **given})["out"] - before)
        rounded = 2 * gamma(hidden / 2 + 7) * np.abs(before)
        # a mean computed twice has a few roundings of its magnitude
        moved = 4 * U * (512 + abs(shift)) / x.std(axis=1, keepdims=True)
        if (off > rounded + moved).any():
            return f"rows moved by {shift} are off by {off.max():.3g}"
    return ""


def flat_row_becomes_the_bias(apply: Apply, case: Case) -> str:
    """A row of equal elements has no variance and gives the bias, bit for bit."""
    weight, bias = case.rng().standard_normal((2, 64), np.float32)
    x = np.repeat(np.array([0, 3, -40_000], np.float32)[:, None], 64, axis=1)
    out = apply({"x": x, "weight": weight, "bias": bias, "eps": 1e-5})["out"]
    wrong = (out != bias).any(axis=1)
    return f"a row of {x[wrong][0, 0]} does not become the bias" if wrong.any() else ""


def _rows(case: Case) -> Array:
    return case.rng().standard_normal((3, max(16, case.shape["hidden"])), np.float32)


def _plain(hidden: int) -> Arguments:
    return {"weight": np.ones(hidden, np.float32), "bias": np.zeros(hidden, np.float32)}


LAWS = (
    Law("mean-zero-variance-one", mean_is_zero_and_variance_one),
    Law("size-does-not-matter", size_does_not_matter),
    Law("place-does-not-matter", place_does_not_matter),
    Law("flat-row-becomes-bias", flat_row_becomes_the_bias),
)
