"""Laws of the plain arithmetic between layers."""

import numpy as np

from reference.laws.common import other_bits, several
from reference.op import Apply, Array, Case, Law


def order_does_not_matter(apply: Apply, case: Case) -> str:
    """x + y is y + x, bit for bit."""
    x, y = _two(case)
    return other_bits(apply({"x": y, "y": x}), apply({"x": x, "y": y}))


def zero_changes_nothing(apply: Apply, case: Case) -> str:
    """x + 0 is x, and so it is with a zero below zero."""
    x, _ = _two(case)
    for zero in (0.0, -0.0):
        if (apply({"x": x, "y": np.full_like(x, zero)})["out"] != x).any():
            return f"a number and {zero} is another number"
    return ""


def factors_are_exact(apply: Apply, case: Case) -> str:
    """A factor of 1 or of another power of two rounds nothing, one of 0 gives zeros."""
    x, _ = _two(case)
    for factor in (1.0, -2.0, 2.0**-20, 0.0):
        if (apply({"x": x, "factor": factor})["out"] != x * np.float32(factor)).any():
            return f"times {factor} is off"
    return ""


def _two(case: Case) -> tuple[Array, Array]:
    """Two arrays of normal numbers."""
    rng, case = case.rng(), several(case, "tokens", "width")
    dims = case.shape["tokens"], case.shape["width"]
    x, y = rng.standard_normal((2, *dims), np.float32) * np.float32(2.0 ** rng.integers(-20, 20))
    return x, y


LAWS_OF_ADD = (
    Law("order-does-not-matter", order_does_not_matter),
    Law("zero-changes-nothing", zero_changes_nothing),
)
LAWS_OF_SCALE = (Law("factors-are-exact", factors_are_exact),)
