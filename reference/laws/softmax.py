"""Laws of softmax."""

import numpy as np

from reference.bounds import EXP, TINY, gamma
from reference.op import Apply, Array, Case, Law


def shift_changes_no_bit(apply: Apply, case: Case) -> str:
    """softmax(x + c) = softmax(x), bit for bit."""
    x = _eighths(case)
    before = apply({"x": x})["out"]
    for shift in (4096, -4096, 2**20):
        if not np.array_equal(apply({"x": x + np.float32(shift)})["out"], before):
            return f"rows moved by {shift} give other bits"
    return ""


def rows_sum_to_one(apply: Apply, case: Case) -> str:
    """Every row sums to one."""
    x = case.rng().standard_normal((3, case.shape["width"]), np.float32)
    x[1] *= 1000
    out = apply({"x": x})["out"].astype(np.float64)
    if not (out >= 0).all():
        return "a probability is below zero"
    # all exponentials are divided by the sum of the same ones
    off = np.abs(out.sum(axis=1) - 1).max()
    return f"a row's sum is off by {off:.3g}" if off > gamma(x.shape[1] + 4) + TINY else ""


def order_is_kept(apply: Apply, case: Case) -> str:
    """Monotonic: larger elements are never less likely, and equal ones are equal."""
    x = _eighths(case)
    out = apply({"x": x})["out"]
    for row, probabilities in zip(x, out, strict=True):
        if (np.diff(probabilities[np.argsort(row)]) < 0).any():
            return "a larger element is less likely than a smaller one"
        _, alike = np.unique(row, return_inverse=True)
        if (probabilities != probabilities[np.unique(alike, return_index=True)[1]][alike]).any():
            return "equal elements are not equally likely"
    return ""


def equal_values_share_alike(apply: Apply, case: Case) -> str:
    """A row of equal values is uniform, however large they are."""
    width = case.shape["width"]
    for value in (0.0, -3e38, 3e38):
        out = apply({"x": np.full((1, width), value, np.float32)})["out"]
        if (np.abs(out - 1 / width) > gamma(width + 4) / width).any():
            return f"a row of {value} is not uniform"
    return ""


def masked_is_impossible(apply: Apply, case: Case) -> str:
    """Minus infinity gives exactly 0, and others are as without it."""
    x = _eighths(case)
    cut = x.shape[1] // 2 + 1
    masked = x.copy()
    masked[:, cut:] = -np.inf
    out = apply({"x": masked})["out"]
    if (out[:, cut:] != 0).any():
        return "a masked element has a probability"
    without = apply({"x": x[:, :cut].copy()})["out"]
    off = 2 * (gamma(x.shape[1] + 4) + EXP) * without + TINY
    changed = (np.abs(out[:, :cut] - without) > off).any()
    return "masked elements change the others" if changed else ""


def _eighths(case: Case) -> Array:
    """Multiples of 1/8, exact after adding an integer."""
    steps = case.rng().integers(-64, 64, (2, case.shape["width"]))
    return (steps / 8).astype(np.float32)


LAWS = (
    Law("shift-changes-no-bit", shift_changes_no_bit),
    Law("rows-sum-to-one", rows_sum_to_one),
    Law("order-is-kept", order_is_kept),
    Law("equal-values-share-alike", equal_values_share_alike),
    Law("masked-is-impossible", masked_is_impossible),
)
