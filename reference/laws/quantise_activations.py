"""Laws of int8 activations."""

import numpy as np

from reference.laws.common import other_bits
from reference.op import Apply, Array, Case, Law

BLOCK = 32


def the_error_is_half_a_step(apply: Apply, case: Case) -> str:
    """Every element is within half its block's scale, which its largest element sets to 127; and
    a total is the sum of its block."""
    blocks = _blocks(case) * np.float32(2.0 ** case.rng().integers(-60, 60))
    q, scale, total = apply({"x": blocks.reshape(len(blocks), -1)}).values()
    q = q.astype(np.int64).reshape(blocks.shape)
    step = scale.astype(np.float64)[..., None]
    if (np.abs(blocks - q * step) > step * (0.5 + 2**-15)).any():
        return "an element is off by more than half a step"
    if (np.abs(q).max(axis=-1) != 127).any():
        return "the largest of a block is not 127 or -127"
    return "" if np.array_equal(total, q.sum(axis=-1)) else "a total is not the sum of its block"


def halves_round_away_from_zero(apply: Apply, case: Case) -> str:
    """Where the scale is 1, halves go to the whole number beyond them."""
    rng = case.rng()
    halves = np.asarray(rng.integers(-127, 127, _blocks(case).shape) + 0.5, np.float32)
    halves[..., int(rng.integers(BLOCK))] = 127
    q = apply({"x": halves.reshape(len(halves), -1)})["q"].reshape(halves.shape)
    want = np.trunc(halves + np.copysign(0.5, halves))
    wrong = np.argwhere(q != want)
    at = tuple(wrong[0]) if len(wrong) else ()
    return f"{halves[at]} becomes {q[at]}, not {want[at]:.0f}" if at else ""


def powers_of_two_change_the_scale_alone(apply: Apply, case: Case) -> str:
    """x times a power of two has the same integers and a scale times that; -x has the negatives."""
    blocks = _blocks(case)
    x = blocks.reshape(len(blocks), -1)
    once = apply({"x": x})
    for factor in np.array([2.0**-60, 2.0**-20, 2.0**60], np.float32):
        want = {**once, "scale": once["scale"] * factor}
        if found := other_bits(apply({"x": x * factor}), want):
            return f"x times {factor}: {found}"
    want = {"q": -once["q"], "scale": once["scale"], "total": -once["total"]}
    if found := other_bits(apply({"x": -x}), want):
        return f"-x: {found}"
    return ""


def a_block_that_is_not_finite_says_so(apply: Apply, case: Case) -> str:
    """Its scale is NaN, its integers and its total are 0; no other block changes a bit."""
    blocks, rng = _blocks(case), case.rng()
    before = apply({"x": blocks.reshape(len(blocks), -1)})
    for value in (np.nan, np.inf, -np.inf):
        t, b, i = (int(rng.integers(size)) for size in blocks.shape)
        x = blocks.copy()
        x[t, b, i] = value
        want = {name: array.copy() for name, array in before.items()}
        want["q"][t, BLOCK * b : BLOCK * (b + 1)] = 0
        want["scale"][t, b], want["total"][t, b] = np.nan, 0
        if found := other_bits(apply({"x": x.reshape(len(x), -1)}), want):
            return f"a block with {value}: {found}"
    return ""


def _blocks(case: Case) -> Array:
    """Ordinary numbers, [tokens, blocks, 32]."""
    rng = case.rng()
    shape = (*(int(n) for n in rng.integers(1, 6, 2)), BLOCK)
    return rng.standard_normal(shape, np.float32)


LAWS = (
    Law("the-error-is-half-a-step", the_error_is_half_a_step),
    Law("halves-round-away-from-zero", halves_round_away_from_zero),
    Law("powers-of-two-change-the-scale-alone", powers_of_two_change_the_scale_alone),
    Law("a-block-that-is-not-finite-says-so", a_block_that_is_not_finite_says_so),
)
