"""Laws of root-mean-square normalisation."""

import numpy as np

from reference.bounds import gamma
from reference.op import Apply, Array, Case, Law


def mean_square_is_one(apply: Apply, case: Case) -> str:
    """With unit weights and no eps, every row has a mean square of one."""
    x = _rows(case)
    hidden = x.shape[1]
    out = apply({"x": x, "weight": np.ones(hidden, np.float32), "eps": 0.0})["out"]
    found = np.mean(out.astype(np.float64) ** 2, axis=1)
    # an element has (hidden + 1) / 2 + 6 roundings, its square twice as many
    wrong = np.abs(found - 1) > gamma(hidden + 13)
    return f"a row of {hidden} has a mean square of {found[wrong][0]}" if wrong.any() else ""


def size_does_not_matter(apply: Apply, case: Case) -> str:
    """Without eps, scaling a row by a power of two changes no bit."""
    x = _rows(case)
    given = {"weight": np.ones(x.shape[1], np.float32), "eps": 0.0}
    once = apply({"x": x, **given})["out"]
    for factor in (2.0**-30, 2.0**30):
        if not np.array_equal(apply({"x": x * np.float32(factor), **given})["out"], once):
            return f"rows scaled by {factor} give other bits"
    return ""


def eps_rules_small_rows(apply: Apply, case: Case) -> str:
    """A row far below eps is divided by eps's root, and a zero row is unchanged."""
    x = _rows(case) * np.float32(2.0**-60)
    x[0] = 0
    for eps in (2.0**-20, 2.0**-40):
        out = apply({"x": x, "weight": np.ones(x.shape[1], np.float32), "eps": eps})["out"]
        if (np.abs(out - x / np.sqrt(eps)) > gamma(8) * np.abs(x) / np.sqrt(eps)).any():
            return f"rows far below an eps of {eps} are not divided by its root"
    return ""


def largest_rows_are_normalised(apply: Apply, case: Case) -> str:
    """A row of 2^16 elements at the end of the domain becomes 1 and -1."""
    signs = case.rng().choice(np.array([-1, 1], np.float32), (1, 2**16))
    x = signs * np.float32(case.largest)
    out = apply({"x": x, "weight": np.ones(x.shape[1], np.float32), "eps": 1e-5})["out"]
    if (np.abs(out - signs) > gamma((x.shape[1] + 1) / 2 + 6)).any():
        return f"a row of {case.largest:.3g} and its opposite is not one of 1 and -1"
    return ""


def _rows(case: Case) -> Array:
    return case.rng().standard_normal((3, max(2, case.shape["hidden"])), np.float32)


LAWS = (
    Law("mean-square-is-one", mean_square_is_one),
    Law("size-does-not-matter", size_does_not_matter),
    Law("eps-rules-small-rows", eps_rules_small_rows),
    Law("largest-rows", largest_rows_are_normalised),
)
