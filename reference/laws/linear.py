"""Laws of the linear layer."""

from dataclasses import replace

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import Make, alone
from reference.op import Apply, Arguments, Array, Case, Law

FLOATS = ("F32", "F16", "BF16")
WHOLE = (*FLOATS, "Q8_0", "Q4_0")  # formats that hold small integers exactly
CUTS = (47, 48, 49, 64, 65, 113)  # tokens around a kernel's tile


def whole_numbers_are_exact(apply: Apply, case: Case) -> str:
    """Integer sums that float32 holds are exact, in any order of summation."""
    given, w = _whole(case, 0)
    off = apply(given)["out"] != given["x"] @ w.T.astype(np.float64)
    return f"{off.sum()} of {off.size} products of whole numbers are not exact" if off.any() else ""


def sums_go_through(apply: Apply, case: Case) -> str:
    """Linear: the product of a sum is the sum of the products, exactly for integers."""
    (given, _), (other, _) = _whole(case, 0), _whole(case, 1)
    both = apply({**given, "x": given["x"] + other["x"]})["out"]
    apart = apply(given)["out"] + apply({**given, "x": other["x"]})["out"]
    return "" if np.array_equal(both, apart) else "(x + y) W is not x W + y W"


def nothing_gives_zero(apply: Apply, case: Case) -> str:
    """Zero weights and zero activations give zero."""
    given, rng = _like(case), case.rng()
    given["x"] = rng.standard_normal(given["x"].shape, np.float32)
    for name in ("weight", "x"):
        if apply({**given, name: np.zeros_like(given[name])})["out"].any():
            return f"{name} of zeros does not give zeros"
    return ""


def each_weight_meets_its_activation(apply: Apply, case: Case) -> str:
    """A unit activation selects its column of the weight, at every index, but for rounding to
    bfloat16."""
    given = _like(case)
    layout, unit = FORMATS[given["format"]], np.float32(127)  # exact in int8
    columns = unit * layout.dequantise(given["weight"]).T.astype(np.float64)
    # an offset and its term may cancel but are rounded separately
    cancelled = 2.0**-22 * np.abs(columns).max() if layout.offset else 0
    off = np.abs(apply({**given, "x": given["x"] * unit})["out"] - columns)
    wrong = np.argwhere(off > 2.0**-8 * np.abs(columns) + cancelled)
    return f"column {wrong[0][0]} is not that of the weight" if len(wrong) else ""


def cuts(signature: str, make: Make) -> Law:
    """With more tokens and a larger hidden than a kernel's tile, each token has the bits that it
    has alone."""
    tokens_alone = alone(signature, make)

    def broken(apply: Apply, case: Case) -> str:
        tokens, block = int(case.rng().choice(CUTS)), FORMATS[case.format or "F32"].block
        shape = {"tokens": tokens, "hidden": -(-2144 // block) * block, "out": 33}
        return tokens_alone.broken(apply, replace(case, shape=shape))

    return Law("cuts-change-no-bit", broken)


def _whole(case: Case, turn: int) -> tuple[Arguments, Array]:
    """Integer activations and weights that are exact in the format and in int8 activations."""
    rng, hidden = np.random.default_rng([case.seed, turn]), 32 * int(case.rng().integers(1, 9))
    tokens, out = case.rng().integers(1, 40, 2)
    x = rng.integers(-126, 127, (tokens, hidden)).astype(np.float32)
    x[:, ::32] = 127  # each block's maximum, so that its scale is 1
    w = case.rng().integers(-7, 8, (out, hidden)).astype(np.float32)
    w[:, 1::32] = 127 if case.format == "Q8_0" else -8  # so that a block's scale is 1
    weight = FORMATS[case.format or "F32"].quantise(w)
    return {"x": x, "weight": weight, "format": case.format}, w


def _like(case: Case) -> Arguments:
    """Unit activations, one for each token, and ordinary weights."""
    layout, rng = FORMATS[case.format or "F32"], case.rng()
    hidden = min(case.shape["hidden"], 512)
    weight = layout.random_like(rng.standard_normal((37, hidden), np.float32), rng)
    return {"x": np.eye(hidden, dtype=np.float32), "weight": weight, "format": case.format}


LAWS = (
    Law("whole-numbers-are-exact", whole_numbers_are_exact, WHOLE),
    Law("sums-go-through", sums_go_through, FLOATS),
    Law("nothing-gives-zero", nothing_gives_zero),
    Law("each-weight-meets-its-activation", each_weight_meets_its_activation),
)
