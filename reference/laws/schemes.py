"""Laws of integer and FP8 quantisation in groups, and of linear layers on them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from reference.bounds import TINY
from reference.laws.common import Make, alone, other_bits
from reference.op import Apply, Arguments, Array, Case, Law

CUTS = (47, 49, 65)  # tokens around a kernel's tile
LARGEST_GROUP = (2**31 - 1) // 255**2 // 32 * 32  # sums fit into 32 bits


def halves_round_to_even(apply: Apply, case: Case) -> str:
    """At scale 1, 0.5 and 2.5 round down, 1.5 up, and negative numbers likewise."""
    halves = 0.5, 1.5, 2.5, -0.5, -1.5, -2.5
    x = np.array([[127, low, *halves] for low in (-127, -128)], np.float32)
    q, scale, *_ = apply({"x": x, "bits": 8}).values()
    if not (found := q[scale == 1, 2:].tolist()):
        return f"neither -127 to 127 nor -128 to 127 has a scale of 1, but {scale.tolist()}"
    return "" if found == [[0, 2, 2, 0, -2, -2]] else f"{halves} become {found[0]}"


def a_group_that_is_not_finite_says_so(apply: Apply, case: Case) -> str:
    """A non-finite group has scale NaN and other outputs 0; no other group changes a bit."""
    rng, bits = case.rng(), _bits(case)
    x = rng.standard_normal((3, max(2, case.shape["size"])), np.float32)
    before = apply({"x": x, **bits})
    for value in (np.nan, np.inf, -np.inf):
        for at in (0, x.shape[1] - 1, int(rng.integers(x.shape[1]))):
            spoilt = x.copy()
            spoilt[1, at] = value
            want = {name: array.copy() for name, array in before.items()}
            for name, array in want.items():
                array[1] = np.nan if name == "scale" else 0
            if found := other_bits(apply({"x": spoilt, **bits}), want):
                return f"a group with {value}: {found}"
    return ""


def scales_too_small_are_zero(apply: Apply, case: Case) -> str:
    """Subnormal groups and zeros become zeros; a normal scale is kept."""
    x = np.float32(TINY) * np.array([[0, 0], [0.5, 1], [0, 2.0**17]], np.float32)
    found = apply({"x": x, **_bits(case)})
    if not np.array_equal(found["scale"] > 0, [False, False, True]):
        return f"scales of tiny groups are {found['scale'].tolist()}"
    if any(value[:2].any() for value in found.values()):
        return "a group whose scale is too small is not all zero"
    return ""


def the_error_is_half_a_step(apply: Apply, case: Case) -> str:
    """Errors of integers are at most half a step, plus float32 rounding of up to 255 steps."""
    x, bits = _ordinary(case), _bits(case)
    found = apply({"x": x, **bits})
    zero = found.get("zero", np.zeros(len(x), np.int32))
    steps = found["scale"].astype(np.float64)[:, None]
    restored = (found["q"].astype(np.float64) - zero[:, None]) * steps
    if (np.abs(restored - x) > steps * (0.5 + 2.0**-14)).any():
        return "an element is off by more than half a step"
    outside = np.abs(found["q"].astype(int) + 0.5) > 2 ** (bits["bits"] - 1)
    return "an integer exceeds the requested bits" if outside.any() else ""


def negatives_have_the_same_scale(sign: Callable[[Array], Array]) -> Law:
    """-x has the same scale, and the codes given by `sign`."""

    def broken(apply: Apply, case: Case) -> str:
        x, bits = _ordinary(case), _bits(case)
        once = apply({"x": x, **bits})
        want = {**once, "q": sign(once["q"])}
        return other_bits(apply({"x": -x, **bits}), want)

    return Law("negatives-have-the-same-scale", broken)


def powers_of_two_change_the_scale_alone(apply: Apply, case: Case) -> str:
    """x times a power of two has the same codes and the scale times that."""
    x, bits = _ordinary(case), _bits(case)
    once = apply({"x": x, **bits})
    for factor in np.array([2.0**-60, 2.0**60], np.float32):
        want = {**once, "scale": once["scale"] * factor}
        if found := other_bits(apply({"x": x * factor, **bits}), want):
            return f"x times {factor}: {found}"
    return ""


def whole_numbers_are_exact(apply: Apply, case: Case) -> str:
    """linear_w8a8: a group's sum is exact, then rounded once, up to the limit of 32 bits."""
    rng = case.rng()
    given = _whole(case, int(rng.integers(1, 14)), 1, 96, 33)
    extremes = _whole(case, 2, 1, LARGEST_GROUP, 17)
    q, zero = rng.permutation([127, -128])
    for name in ("x", "weight"):
        extremes[name][:], extremes[f"{name}_zero"][:] = q, zero
    for one in (given, extremes):
        x = one["x"].astype(np.int64) - one["x_zero"]
        want = x @ (one["weight"].astype(np.int64) - one["weight_zero"].T).T
        if not np.array_equal(apply(one)["out"], want.astype(np.float32)):
            return f"products of groups of {x.shape[1]} whole numbers are not exact"
    return ""


def only_the_distance_counts(apply: Apply, case: Case) -> str:
    """linear_w8a8: adding a constant to integers and zero points changes no bit."""
    rng, given = case.rng(), _whole(case, 3, 2, 32, 17)
    for name in ("x", "weight"):
        given[name] = rng.integers(-64, 64, given[name].shape).astype(np.int8)
        given[f"{name}_zero"][:] = 0
        given[f"{name}_scale"] = rng.random(given[f"{name}_scale"].shape, np.float32)
    moved = dict(given)
    for name in ("x", "weight"):
        shift = int(rng.integers(-60, 61))
        moved[name] = (given[name] + shift).astype(np.int8)
        moved[f"{name}_zero"] = given[f"{name}_zero"] + np.int32(shift)
    return other_bits(apply(moved), apply(given))


def cuts(signature: str, make: Make, *shapes: dict[str, int]) -> Law:
    """With more tokens and longer sums than a kernel's tile, each token has the bits that it has
    alone."""
    tokens_alone = alone(signature, make)

    def broken(apply: Apply, case: Case) -> str:
        tokens = int(case.rng().choice(CUTS))
        shape = {"tokens": tokens, "out": 33, **shapes[case.seed % len(shapes)]}
        return tokens_alone.broken(apply, replace(case, shape=shape, values="normal"))

    return Law("cuts-change-no-bit", broken)


def every_code_is_its_number(decode: Callable[[Array], Array], one: int) -> Law:
    """Linear layers on FP8: a one, code `one`, on either side selects the value of each code on the
    other."""

    def broken(apply: Apply, case: Case) -> str:
        codes = np.arange(256, dtype=np.uint8)
        numbers, ones = decode(codes) + np.float32(0), np.ones(256, np.float32)
        unit = np.full((1, 1), one, np.uint8)
        given = {"x": unit, "x_scale": ones[:1], "weight": codes[:, None], "weight_scale": ones}
        if found := other_bits(apply(given), {"out": numbers[None]}):
            return f"codes of the weight: {found}"
        given = {"x": codes[:, None], "x_scale": ones, "weight": unit, "weight_scale": ones[:1]}
        if found := other_bits(apply(given), {"out": numbers[:, None]}):
            return f"codes of x: {found}"
        return ""

    return Law("every-code-is-its-number", broken)


def _ordinary(case: Case) -> Array:
    rng = case.rng()
    return rng.standard_normal((int(rng.integers(2, 9)), max(2, case.shape["size"])), np.float32)


def _bits(case: Case) -> dict[str, Any]:
    return {"bits": case.shape["bits"]} if "bits" in case.shape else {}


def _whole(case: Case, tokens: int, groups: int, size: int, out: int) -> Arguments:
    """Integers over the whole range, extremes included, and scales of 1."""
    rng, found = case.rng(), {}
    for name, rows, scales in (("x", tokens, (tokens, groups)), ("weight", out, (groups, out))):
        q = rng.integers(-128, 128, (rows, groups * size))
        found[name] = np.where(rng.random(q.shape) < 0.2, -128, q).astype(np.int8)
        found[f"{name}_scale"] = np.ones(scales, np.float32)
        found[f"{name}_zero"] = rng.integers(-128, 128, scales).astype(np.int32)
    return found


QUANTISING = (
    Law("a-group-that-is-not-finite-says-so", a_group_that_is_not_finite_says_so),
    Law("scales-too-small-are-zero", scales_too_small_are_zero),
    Law("powers-of-two-change-the-scale-alone", powers_of_two_change_the_scale_alone),
)
INTEGERS = (
    *QUANTISING,
    Law("halves-round-to-even", halves_round_to_even),
    Law("the-error-is-half-a-step", the_error_is_half_a_step),
)
W8A8 = (
    Law("whole-numbers-are-exact", whole_numbers_are_exact),
    Law("only-the-distance-counts", only_the_distance_counts),
)
