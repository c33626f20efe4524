"""Laws of the plain arithmetic between layers."""

import numpy as np

from reference.bounds import U
from reference.laws.common import other_bits, several
from reference.op import Apply, Array, Case, Law


def order_does_not_matter(apply: Apply, case: Case) -> str:
    """Commutative, bit for bit."""
    x, y = _two(case)
    return other_bits(apply({"x": y, "y": x}), apply({"x": x, "y": y}))


def one_changes_nothing(apply: Apply, case: Case) -> str:
    """x * 1 = x and x * -1 = -x, bit for bit."""
    x, _ = _two(case)
    for factor in (1.0, -1.0):
        if (apply({"x": x, "y": np.full_like(x, factor)})["out"] != x * np.float32(factor)).any():
            return f"a number times {factor} is off"
    return ""


def zero_changes_nothing(apply: Apply, case: Case) -> str:
    """x + 0 = x and x + -0 = x."""
    x, _ = _two(case)
    for zero in (0.0, -0.0):
        if (apply({"x": x, "y": np.full_like(x, zero)})["out"] != x).any():
            return f"a number and {zero} is another number"
    return ""


def factors_are_exact(apply: Apply, case: Case) -> str:
    """A factor of a power of two does not round; 0 gives zeros."""
    x, _ = _two(case)
    for factor in (1.0, -2.0, 2.0**-20, 0.0):
        if (apply({"x": x, "factor": factor})["out"] != x * np.float32(factor)).any():
            return f"times {factor} is off"
    return ""


def signs_pass(apply: Apply, case: Case) -> str:
    """softcap(-x) = -softcap(x), bit for bit."""
    x, _ = _two(case)
    out = apply({"x": x, "cap": 2.0})["out"]
    return other_bits(apply({"x": -x, "cap": 2.0}), {"out": -out})


def the_cap_is_the_limit(apply: Apply, case: Case) -> str:
    """|softcap(x)| <= cap, with equality for large x."""
    x, _ = _two(case)
    far = np.full((1, 3), 1e4, np.float32)
    for cap in (30.0, 0.5):
        if (np.abs(apply({"x": x, "cap": cap})["out"]) > cap).any():
            return f"an output exceeds the cap {cap}"
        if (apply({"x": far, "cap": cap})["out"] != cap).any():
            return f"a large number does not give the cap {cap}"
    return ""


def small_numbers_stay(apply: Apply, case: Case) -> str:
    """softcap(x) is close to x for |x| far below the cap."""
    x, _ = _two(case)
    off = np.abs(apply({"x": x, "cap": 2.0**40})["out"] - x)
    return f"off by {off.max():.3g}" if (off > 10 * U * np.abs(x)).any() else ""


def _two(case: Case) -> tuple[Array, Array]:
    """Two arrays of ordinary numbers."""
    rng, case = case.rng(), several(case, "tokens", "width")
    dims = case.shape["tokens"], case.shape["width"]
    x, y = rng.standard_normal((2, *dims), np.float32) * np.float32(2.0 ** rng.integers(-20, 20))
    return x, y


LAWS_OF_ADD = (
    Law("order-does-not-matter", order_does_not_matter),
    Law("zero-changes-nothing", zero_changes_nothing),
)
LAWS_OF_MUL = (
    Law("order-does-not-matter", order_does_not_matter),
    Law("one-changes-nothing", one_changes_nothing),
)
LAWS_OF_SOFTCAP = (
    Law("signs-pass", signs_pass),
    Law("the-cap-is-the-limit", the_cap_is_the_limit),
    Law("small-numbers-stay", small_numbers_stay),
)
LAWS_OF_SCALE = (Law("factors-are-exact", factors_are_exact),)
