"""Laws of packing keys and values in two bits."""

from functools import partial

import numpy as np

from reference.formats import FORMATS
from reference.formats.kivi import (
    GROUP,
    LARGEST_CODE,
    PAGE_BYTES,
    STEPS,
    keys_of,
    values_of,
)  # fmt: skip
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

KV_HEADS, HEAD_DIM = 3, 64
DECODED = {"kivi_keys": keys_of, "kivi_values": values_of}
ALONG = {"kivi_keys": 0, "kivi_values": 3}  # group axis in [32, kv_heads, head_dim / 32, 32]


def scene(case: Case, x: Array) -> Arguments:
    """One group, of numbers [32, kv_heads, head_dim], for the second of three pages."""
    assert case.format is not None
    before = np.full((3, KV_HEADS, HEAD_DIM, PAGE_BYTES), 0xFF, np.uint8)
    return {
        "x": FORMATS[case.format].quantise(x.reshape(GROUP, -1).astype(np.float32)),
        "lists": case.rng().permutation(GROUP).astype(np.int32)[None],
        "spans": np.array([[0, GROUP, GROUP]], np.int32),
        "into": np.array([1], np.int32),
        "before": before,
        "format": case.format,
    }


def halves(case: Case) -> Array:
    """float16 numbers [32, kv_heads, head_dim], with groups far from zero and constant ones."""
    rng = case.rng()
    dims = GROUP, KV_HEADS, HEAD_DIM
    x = rng.standard_normal(dims) * 2.0 ** rng.integers(-16, 12, dims[1:])
    x += rng.choice([0.0, 100.0, -3e4], dims[1:])
    x[:, 0, :2] = 7
    return x.astype(np.float16).astype(np.float64)


def in_order(given: Arguments) -> Array:
    """The scene's group decoded, by token: float64 [32, kv_heads, head_dim]."""
    rows = FORMATS[given["format"]].dequantise(given["x"][given["lists"][0]])
    return rows.reshape(GROUP, KV_HEADS, HEAD_DIM).astype(np.float64)


def within_half_a_step(op: str, apply: Apply, case: Case) -> str:
    """Errors are at most a sixth of the group's range, plus the rounding of the step by an eighth
    of itself or 2^-17, and that of float32."""
    given = scene(case, halves(case))
    x = in_order(given)
    got = DECODED[op](apply(given)["out"])[1]
    groups = x.reshape(GROUP, KV_HEADS, -1, GROUP)
    spread = np.ptp(groups, axis=ALONG[op], keepdims=True)
    step = np.maximum(spread / LARGEST_CODE * 1.126, spread / LARGEST_CODE + STEPS[1])
    off = np.abs(got - x).reshape(groups.shape)
    worst = off - (0.501 * step + 2.0**-23 * np.abs(groups))
    return "" if (worst <= 0).all() else f"a number is off by {off.flat[worst.argmax()]:.3g}"


def what_has_four_levels_is_kept(op: str, apply: Apply, case: Case) -> str:
    """Groups with values 0 to 3 steps above a number, both ends included, are decoded exactly."""
    rng = case.rng()
    codes = rng.integers(0, LARGEST_CODE + 1, (GROUP, KV_HEADS, HEAD_DIM // GROUP, GROUP))
    ends = np.moveaxis(codes, ALONG[op], 0)
    ends[0], ends[1] = 0, LARGEST_CODE
    x = (codes + rng.integers(-8, 8)) * 2.0 ** rng.integers(-10, 5)
    given = scene(case, x.reshape(GROUP, KV_HEADS, HEAD_DIM))
    got = DECODED[op](apply(given)["out"])[1:2]
    return other_bits({"out": got + 0}, {"out": in_order(given)[None].astype(np.float32) + 0})


def groups_are_apart(op: str, apply: Apply, case: Case) -> str:
    """A changed number in one group changes no other group, and no other page."""
    given = scene(case, halves(case))
    token, head, channel = 5, 1, 40
    changed = {**given, "x": given["x"].copy()}
    row = changed["x"][given["lists"][0, token]].view(np.float16)
    row[head * HEAD_DIM + channel] = 6e4
    before, after = (apply(one)["out"] for one in (given, changed))
    if found := other_bits({"out": after[[0, 2]]}, {"out": given["before"][[0, 2]]}):
        return f"a page not written: {found}"
    old, new = (DECODED[op](out[1:2])[0] for out in (before, after))
    of_group = (slice(None), head, channel) if op == "kivi_keys" else (token, head, slice(32, 64))
    new[of_group] = old[of_group]
    found = other_bits({"out": new}, {"out": old})
    return f"a group not changed: {found}" if found else ""


LAWS_OF = {
    op: (
        Law("within-half-a-step", partial(within_half_a_step, op)),
        Law("four-levels-are-kept", partial(what_has_four_levels_is_kept, op)),
        Law("groups-are-apart", partial(groups_are_apart, op)),
    )
    for op in DECODED
}
