"""Laws of masks of active neurons."""

from itertools import pairwise

import numpy as np

from reference.laws.common import other_bits, several
from reference.op import Apply, Array, Case, Law

INF, NAN = float("inf"), float("nan")


def at_the_threshold_is_active(apply: Apply, case: Case) -> str:
    """Equal logits are active, +0 and -0 are equal, and NaN compares false on either side."""
    logits = np.array([[-INF, -1.5, -0.0, 0.0, 2.0, INF, NAN]], np.float32)
    reached = (
        (0.0, [0, 0, 1, 1, 1, 1, 0]),
        (-0.0, [0, 0, 1, 1, 1, 1, 0]),
        (2.0, [0, 0, 0, 0, 1, 1, 0]),
        (-1.5, [0, 1, 1, 1, 1, 1, 0]),
        (-INF, [1, 1, 1, 1, 1, 1, 0]),
        (INF, [0, 0, 0, 0, 0, 1, 0]),
        (NAN, [0, 0, 0, 0, 0, 0, 0]),
    )
    for threshold, active in reached:
        found = apply({"logits": logits, "threshold": threshold})["mask"][0]
        if (found != active).any():
            return f"a threshold of {threshold} gives {found.tolist()} for {logits[0].tolist()}"
    return ""


def threshold_is_not_rounded(apply: Apply, case: Case) -> str:
    """Logits next to a threshold compare as in float64, also if its float32 is less."""
    for threshold in (0.3, 0.7, 1e-3, -2.1, -0.7):
        near = np.nextafter(np.float32(threshold), np.array([-9, threshold, 9], np.float32))
        logits = np.resize(near, (2, 35))
        found = apply({"logits": logits, "threshold": threshold})["mask"]
        if (found != (logits.astype(np.float64) >= threshold)).any():
            return f"a logit next to {threshold} is on the wrong side"
    return ""


def higher_threshold_activates_no_more(apply: Apply, case: Case) -> str:
    """A lower threshold activates a superset; minus infinity activates all."""
    shape = several(case, "tokens", "neurons").shape
    logits = case.rng().standard_normal((shape["tokens"], shape["neurons"]), np.float32)
    thresholds = (-INF, -1.0, 0.0, 0.5, 3.0, INF)
    masks = [apply({"logits": logits, "threshold": t})["mask"] for t in thresholds]
    if not masks[0].all() or masks[-1].any():
        return "minus infinity does not activate all, or infinity activates some"
    for (low, lower), (high, higher) in pairwise(zip(thresholds, masks, strict=True)):
        if (higher > lower).any():
            return f"{high} activates a neuron that {low} does not"
    return ""


def union_of_a_union_is_itself(apply: Apply, case: Case) -> str:
    """Every token has the same union, which is idempotent and independent of token order."""
    mask = _mask(case)
    out = apply({"mask": mask})
    if (out["out"] != out["out"][0]).any():
        return "tokens have different unions"
    again, turned = apply({"mask": out["out"]}), apply({"mask": mask[::-1].copy()})
    return other_bits(again, out) or other_bits(turned, out)


def two_parts_make_the_whole(apply: Apply, case: Case) -> str:
    """Each active neuron is in just the part where it is placed; the parts add up to the mask."""
    mask, places = _mask(case), _places(case)
    for place in (0, 1):
        part = apply({"mask": mask, "places": places, "place": float(place)})["out"]
        if part[:, places != place].any():
            return f"a neuron not placed at {place} is in its part"
        if (part[:, places == place] != mask[:, places == place]).any():
            return f"a neuron placed at {place} has changed"
    return ""


def nobody_lives_elsewhere(apply: Apply, case: Case) -> str:
    """A place without neurons gets none."""
    for place in (2.0, -1.0, 0.5, NAN, INF):
        given = {"mask": _mask(case), "places": _places(case), "place": place}
        if apply(given)["out"].any():
            return f"neurons are active at {place}"
    return ""


def all_and_none_are_found(apply: Apply, case: Case) -> str:
    """A full mask lists every neuron; an empty one, or one without tokens, none."""
    full = np.ones_like(_mask(case))
    neurons = np.arange(full.shape[1])
    found = apply({"mask": full})
    if found["count"] != len(neurons) or (found["rows"] != neurons).any():
        return f"of {len(neurons)} active neurons {found['count'][0]} are found"
    for empty in (0 * full, full[:0]):
        found = apply({"mask": empty})
        if found["count"] or found["rows"].any():
            return f"{found['count'][0]} neurons are found where none is active"
    return ""


def rows_are_those_of_the_union(apply: Apply, case: Case) -> str:
    """For which of the tokens a neuron is active does not matter."""
    mask = _mask(case)
    united = mask.max(axis=0, keepdims=True)
    return other_bits(apply({"mask": mask}), apply({"mask": united}))


def counts_do_not_run_over(apply: Apply, case: Case) -> str:
    """Counts go beyond 32 bits, and beyond a byte for the tokens of one call."""
    neurons = max(5, case.shape["neurons"])
    before = 2**40 + np.arange(neurons)
    out = apply({"mask": np.ones((300, neurons), np.uint8), "before": before})["out"]
    return "" if (out == before + 300).all() else f"{before[0]} plus 300 is {out[0]}"


def active_value_keeps_its_bits(apply: Apply, case: Case) -> str:
    """NaN, infinities and subnormals are copied where active; elsewhere is zero, not a product."""
    mask = _mask(case)
    x = np.resize(np.array([NAN, INF, -INF, -0.0, 1e-45, -2.5, 3.0], np.float32), mask.shape)
    return other_bits(apply({"x": x, "mask": mask}), {"out": np.where(mask, x, np.float32(0))})


def _mask(case: Case) -> Array:
    shape = several(case, "tokens", "neurons").shape
    return np.asarray(case.rng().random((shape["tokens"], shape["neurons"])) < 0.1, np.uint8)


def _places(case: Case) -> Array:
    neurons = several(case, "tokens", "neurons").shape["neurons"]
    return np.asarray(case.rng().random(neurons) < 0.5, np.int32)


LAWS = {
    "threshold_mask": (
        Law("at-the-threshold-is-active", at_the_threshold_is_active),
        Law("threshold-is-not-rounded", threshold_is_not_rounded),
        Law("higher-threshold-no-more", higher_threshold_activates_no_more),
    ),
    "union_mask": (Law("union-of-a-union", union_of_a_union_is_itself),),
    "neuron_split": (
        Law("two-parts-make-the-whole", two_parts_make_the_whole),
        Law("nobody-lives-elsewhere", nobody_lives_elsewhere),
    ),
    "active_rows": (
        Law("all-and-none-are-found", all_and_none_are_found),
        Law("rows-of-the-union", rows_are_those_of_the_union),
    ),
    "add_counts": (Law("counts-do-not-run-over", counts_do_not_run_over),),
    "where_active": (Law("active-value-keeps-its-bits", active_value_keeps_its_bits),),
}
