"""Laws of block-sparse attention. That a full mask equals attention, bit for bit, needs two
kernels: conformance/kernel/test_pattern_attention.py."""

import numpy as np

from reference.laws.attention import attention
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Case, Law

CELLS, TOKENS, ROWS = 700, 90, 3


def scene(case: Case) -> Arguments:
    """attention's, for the last tokens of a prompt; about every other cell is seen."""
    rng = case.rng()
    size = max(32, case.shape["head_dim"] // 32 * 32)
    given = attention.scene(
        Case({**case.shape, "head_dim": size}, case.values, case.seed, case.format), CELLS, TOKENS
    )
    for name in ("positions", "cell_positions", "slopes", "sinks"):
        del given[name]
    ends = CELLS - TOKENS + 1 + np.arange(TOKENS)
    given["spans"] = np.stack([0 * ends, 0 * ends, ends], axis=1).astype(np.int32)
    dims = given["q"].shape[1], ROWS, CELLS
    sees = (rng.random(dims) < 0.5).astype(np.uint8)
    return given | {"sees": sees, "before": np.zeros_like(given["q"])}


def what_is_not_seen_never_matters(apply: Apply, case: Case) -> str:
    """Unseen cells may hold NaN; any nonzero mask entry means seen."""
    given = scene(case)
    given["sees"][:, :, ::5] = 0
    usual, gone = apply(given), given["lists"][0, ::5]
    spoilt = {name: given[name].copy() for name in ("k", "v")}
    for rows in spoilt.values():
        rows[gone] = 0xFF
    if found := other_bits(apply({**given, **spoilt}), usual):
        return f"NaN in unseen cells: {found}"
    found = other_bits(apply({**given, "sees": given["sees"] * np.uint8(128)}), usual)
    return f"128 instead of 1: {found}" if found else ""


def what_is_left_out_is_not_there(apply: Apply, case: Case) -> str:
    """If all blocks of all heads see the same cells, a list of only these gives the same."""
    given = scene(case)
    chosen = np.flatnonzero(case.rng().random(CELLS) < 0.6)
    given["sees"][:] = 0
    given["sees"][:, :, chosen] = 1
    shorter, spans = np.zeros_like(given["lists"]), given["spans"].copy()
    shorter[:, : len(chosen)] = given["lists"][:, chosen]
    spans[:, 2] = np.searchsorted(chosen, spans[:, 2])
    alike = {"lists": shorter, "spans": spans, "sees": np.ones_like(given["sees"])}
    found = other_bits(apply({**given, **alike}), apply(given))
    return f"a list of the {len(chosen)} cells that are seen: {found}" if found else ""


def a_part_is_what_it_is_in_the_whole(apply: Apply, case: Case) -> str:
    """Some tokens, or one head, give the bits they have among all; other rows keep `before`."""
    given = scene(case)
    together = apply(given)["out"]
    for first, end in ((0, 1), (7, 50), (TOKENS - 1, TOKENS)):
        spans = given["spans"].copy()
        spans[:first, 2] = spans[end:, 2] = 0
        want = given["before"] + np.float32(3)
        got = apply({**given, "spans": spans, "before": want})
        want[first:end] = together[first:end]
        if found := other_bits(got, {"out": want}):
            return f"tokens {first} to {end - 1} without the others: {found}"
    for head in range(given["q"].shape[1]):
        q = given["q"].copy()
        q[:, np.arange(q.shape[1]) != head] += 1
        if found := other_bits(
            {"out": apply({**given, "q": q})["out"][:, head]}, {"out": together[:, head]}
        ):
            return f"head {head} among others: {found}"
    return ""


LAWS = (
    Law("not-seen", what_is_not_seen_never_matters),
    Law("left-out-is-not-there", what_is_left_out_is_not_there),
    Law("parts-of-the-whole", a_part_is_what_it_is_in_the_whole),
)
