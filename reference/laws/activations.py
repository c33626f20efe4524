"""Laws of the elementwise activations."""

import math

import numpy as np

from reference.bounds import TINY, U
from reference.op import Apply, Array, Case, Law

LINE = np.linspace(-20, 20, 4001, dtype=np.float32)[None]


def zero_stays_zero(apply: Apply, case: Case) -> str:
    """+0 and -0 give 0."""
    out = apply({"x": np.resize(np.array([0, -0.0], np.float32), (3, 37))})["out"]
    return f"0 becomes {out[out != 0][0]}" if (out != 0).any() else ""


def far_from_zero_is_all_or_nothing(apply: Apply, case: Case) -> str:
    """Large positive x gives x, and large negative x gives 0."""
    x = np.array([[100, 1e4, 1e18, 1e38]], np.float32)
    passed, vanished = apply({"x": x})["out"], apply({"x": -x})["out"]
    if (np.abs(passed - x) > 2 * U * x).any():
        return f"of {x.tolist()} gives {passed.tolist()}"
    if (np.abs(vanished) > TINY * (1 + x)).any():
        return f"of {(-x).tolist()} gives {vanished.tolist()}"
    return ""


def odd_part_is_half_of_x(apply: Apply, case: Case) -> str:
    """act(x) - act(-x) = x, as for any x s(x) with s(x) + s(-x) = 1."""
    x = case.rng().standard_normal((3, 67), np.float32) * np.array([[1], [10], [0.01]], np.float32)
    off = np.abs(apply({"x": x})["out"].astype(np.float64) - apply({"x": -x})["out"] - x)
    # exact except for the errors of both s, of which exp's is the largest
    return f"off by {off.max():.3g}" if (off > 256 * U * np.abs(x) + TINY).any() else ""


def rises_above_zero(apply: Apply, case: Case) -> str:
    """act is nondecreasing for x > 0."""
    x = LINE[:, LINE.shape[1] // 2 :].copy()
    falls = np.diff(apply({"x": x})["out"][0]) < 0
    return f"falls behind {x[0, :-1][falls][0]}" if falls.any() else ""


def relu_of_relu_is_relu(apply: Apply, case: Case) -> str:
    """relu(relu(x)) = relu(x), bit for bit."""
    once = apply({"x": LINE})["out"]
    return "" if np.array_equal(apply({"x": once})["out"], once) else "twice is not once"


def twice_is_four_times_as_much(apply: Apply, case: Case) -> str:
    """relu(2 x)^2 = 4 relu(x)^2: powers of two do not round."""
    once, twice = (apply({"x": x})["out"] for x in (LINE, 2 * LINE))
    return "" if np.array_equal(twice, 4 * once) else "twice x is not four times the square"


def close_to_the_exact_form(apply: Apply, case: Case) -> str:
    """The tanh form is within 5e-4 of x * Phi(x), but differs from it."""
    x = LINE[:, ::20].copy()
    off = np.abs(apply({"x": x})["out"] - _exact(x)).max()
    return "" if 1e-4 < off < 5e-4 else f"{off:.3g} off the exact form, not 1e-4 to 5e-4"


def tail_keeps_its_digits(apply: Apply, case: Case) -> str:
    """Far below zero x * Phi(x) agrees with its asymptotic series up to the first omitted term."""
    x = np.array([[-6, -9, -12]], np.float32)
    series = 1 - x**-2.0 + 3 * x**-4.0 - 15 * x**-6.0
    wanted = -np.exp(-(x.astype(np.float64) ** 2) / 2) / math.sqrt(2 * math.pi) * series
    off = np.abs(apply({"x": x})["out"] / wanted - 1)
    return f"off by a share of {off.max():.3g}" if (off > 105 * x**-8.0 + 2e-5).any() else ""


def both_sides_make_one(apply: Apply, case: Case) -> str:
    """sigmoid(x) + sigmoid(-x) = 1, and sigmoid(0) = 1/2."""
    off = np.abs(apply({"x": LINE})["out"].astype(np.float64) + apply({"x": -LINE})["out"] - 1)
    middle = apply({"x": np.zeros((1, 3), np.float32)})["out"]
    if (middle != 0.5).any():
        return f"{middle[0, 0]} at 0"
    return f"off by {off.max():.3g}" if (off > 8 * U).any() else ""


def odd_part_is_x(apply: Apply, case: Case) -> str:
    """softplus(x) - softplus(-x) = x."""
    up, down = (apply({"x": x})["out"].astype(np.float64) for x in (LINE, -LINE))
    off = np.abs(up - down - LINE)
    return f"off by {off.max():.3g}" if (off > 16 * U * (up + down)).any() else ""


def doubled_at_zero(apply: Apply, case: Case) -> str:
    """softplus(0) = ln 2."""
    found = float(apply({"x": np.zeros((1, 1), np.float32)})["out"][0, 0])
    return "" if abs(found - math.log(2)) <= 8 * U else f"{found:.9g} at 0"


def _exact(x: Array) -> Array:
    return np.array([[v / 2 * (1 + math.erf(v / math.sqrt(2))) for v in x[0].tolist()]])


_ALL = (
    Law("zero-stays-zero", zero_stays_zero),
    Law("rises-above-zero", rises_above_zero),
)
_PASSING = (
    *_ALL,
    Law("far-is-all-or-nothing", far_from_zero_is_all_or_nothing),
    Law("odd-part-is-half", odd_part_is_half_of_x),
)
LAWS = {
    "silu": _PASSING,
    "gelu": (*_PASSING, Law("close-to-exact-form", close_to_the_exact_form)),
    "gelu_erf": (*_PASSING, Law("tail-keeps-its-digits", tail_keeps_its_digits)),
    "relu": (*_PASSING, Law("relu-of-relu", relu_of_relu_is_relu)),
    "softplus": (
        _ALL[1],
        _PASSING[2],
        Law("odd-part-is-x", odd_part_is_x),
        Law("doubled-at-zero", doubled_at_zero),
    ),
    "sigmoid": (_ALL[1], Law("both-sides-make-one", both_sides_make_one)),
    "squared_relu": (*_ALL, Law("twice-is-four-times", twice_is_four_times_as_much)),
}
