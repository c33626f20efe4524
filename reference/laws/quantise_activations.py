"""Laws of int8 activations, in blocks of 32 or 256 with a scale."""

from functools import partial

import numpy as np

from reference.laws.common import other_bits
from reference.op import Apply, Array, Case, Law

BLOCK = 32


def the_error_is_half_a_step(together: int, apply: Apply, case: Case) -> str:
    """Every element is within half its block's scale, which maps its maximum to 127; a total is its
    block's sum."""
    blocks = _blocks(together, case) * np.float32(2.0 ** case.rng().integers(-60, 60))
    q, scale, total = apply({"x": blocks.reshape(len(blocks), -1)}).values()
    q = q.astype(np.int64).reshape(blocks.shape)
    step = _once(scale, together).astype(np.float64)[..., None]
    if (np.abs(blocks - q * step) > step * (0.5 + 2**-15)).any():
        return "an element is off by more than half a step"
    if (np.abs(q).max(axis=-1) != 127).any():
        return "the largest of a block is not 127 or -127"
    sums = q.reshape(*total.shape, BLOCK).sum(axis=-1)
    return "" if np.array_equal(total, sums) else "a total is not the sum of its block"


def halves_round_away_from_zero(together: int, apply: Apply, case: Case) -> str:
    """At scale 1, halves round away from zero."""
    rng = case.rng()
    halves = np.asarray(rng.integers(-127, 127, _blocks(together, case).shape) + 0.5, np.float32)
    halves[..., int(rng.integers(together))] = 127
    q = apply({"x": halves.reshape(len(halves), -1)})["q"].reshape(halves.shape)
    want = np.trunc(halves + np.copysign(0.5, halves))
    wrong = np.argwhere(q != want)
    at = tuple(wrong[0]) if len(wrong) else ()
    return f"{halves[at]} becomes {q[at]}, not {want[at]:.0f}" if at else ""


def powers_of_two_change_the_scale_alone(together: int, apply: Apply, case: Case) -> str:
    """x times a power of two has the same integers and that times the scale; -x the negatives."""
    blocks = _blocks(together, case)
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


def a_block_that_is_not_finite_says_so(together: int, apply: Apply, case: Case) -> str:
    """A non-finite block has scale NaN, integers and total 0; no other block changes a bit."""
    blocks, rng = _blocks(together, case), case.rng()
    before = apply({"x": blocks.reshape(len(blocks), -1)})
    for value in (np.nan, np.inf, -np.inf):
        t, b, i = (int(rng.integers(size)) for size in blocks.shape)
        x = blocks.copy()
        x[t, b, i] = value
        want = {name: array.copy() for name, array in before.items()}
        own = slice(b * together // BLOCK, (b + 1) * together // BLOCK)
        want["q"][t, together * b : together * (b + 1)] = 0
        want["scale"][t, own], want["total"][t, own] = np.nan, 0
        if found := other_bits(apply({"x": x.reshape(len(x), -1)}), want):
            return f"a block with {value}: {found}"
    return ""


def _blocks(together: int, case: Case) -> Array:
    """Ordinary numbers, [tokens, blocks, together]."""
    rng = case.rng()
    shape = (*(int(n) for n in rng.integers(1, 6, 2)), together)
    return rng.standard_normal(shape, np.float32)


def _once(scale: Array, together: int) -> Array:
    """One scale for each block, of those repeated for each 32 elements."""
    return scale[:, :: together // BLOCK]


def laws(together: int) -> tuple[Law, ...]:
    """The laws for blocks of `together` elements."""
    return tuple(
        Law(check.__name__.replace("_", "-"), partial(check, together))
        for check in (
            the_error_is_half_a_step,
            halves_round_away_from_zero,
            powers_of_two_change_the_scale_alone,
            a_block_that_is_not_finite_says_so,
        )
    )
