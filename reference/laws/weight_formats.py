"""Laws of quantising whole rows of weights."""

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import Make, other_bits
from reference.op import Apply, Case, Law

# formats whose integers follow from one scale; the search of others may find a better one
KEEPING = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "TQ1_0", "TQ2_0", "MXFP4")


def what_is_held_is_kept(apply: Apply, case: Case) -> str:
    """Quantising decoded rows changes no value."""
    layout = FORMATS[case.format or "F32"]
    x = case.in_range().array(case.rng(), 3, case.shape["hidden"])
    once = layout.dequantise(apply({"x": x, "format": case.format})["out"])
    if not np.isfinite(once).all():  # overflows the format
        return ""
    again = layout.dequantise(apply({"x": once, "format": case.format})["out"])
    changed = np.argwhere(once != again)
    at = tuple(changed[0]) if len(changed) else ()
    return f"{once[at]:.9g} becomes {again[at]:.9g}" if at else ""


def importance_is_relative(make: Make) -> Law:
    """Multiplying all importances by a power of two changes no byte."""

    def broken(apply: Apply, case: Case) -> str:
        given = make(case.in_range())
        given["x"] = case.rng().standard_normal(given["x"].shape, np.float32)
        once = apply(given)
        for factor in (2.0**-6, 2.0**6):
            more = {**given, "importance": given["importance"] * np.float32(factor)}
            if found := other_bits(apply(more), once):
                return f"importance times {factor}: {found}"
        return ""

    return Law("importance-is-relative", broken)


QUANTISING = (Law("what-is-held-is-kept", what_is_held_is_kept, KEEPING),)
