"""Laws of the sparse attention masks of prompts."""

import numpy as np

from reference.laws.attention import pattern_attention
from reference.laws.attention.pattern_attention import CELLS, ROWS, TOKENS
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Case, Law

LAST, PARTS = 40, 12


def scene(case: Case) -> Arguments:
    given = pattern_attention.scene(case)
    return {name: given[name] for name in ("q", "k", "lists", "spans", "format")}


def summing(case: Case) -> Arguments:
    given = scene(case)
    before = np.ones((given["q"].shape[1], 2, CELLS), np.float32)
    return given | {
        "scale": given["q"].shape[2] ** -0.5, "softcap": 0.0, "last": LAST, "before": before,
    }  # fmt: skip


def each_query_gives_one(apply: Apply, case: Case) -> str:
    """Column sums and diagonal sums both add up to one for each observing token; those of a single
    token are mirror images."""
    given = summing(case)
    sums = apply(given)["out"]
    if not np.allclose(sums.sum(axis=2, dtype=np.float64), LAST, rtol=1e-4):
        return f"{LAST} tokens give {sums.sum(axis=2).tolist()}"
    alone = apply({**given, "last": 1})["out"]
    return other_bits({"out": alone[:, 1]}, {"out": alone[:, 0, ::-1]})


def others_change_no_bit(apply: Apply, case: Case) -> str:
    """Tokens before the observing ones change no bit, nor do cells after them."""
    given = summing(case)
    usual, spans = apply(given), given["spans"].copy()
    spans[: TOKENS - LAST, 2] = 0
    if found := other_bits(apply({**given, "spans": spans}), usual):
        return f"without tokens before the observing ones: {found}"
    given["spans"][:, 2] -= 20
    usual, spoilt = apply(given), given["k"].copy()
    spoilt[given["lists"][0, CELLS - 20 :]] = 0xFF
    found = other_bits(apply({**given, "k": spoilt}), usual)
    return f"NaN after the last token: {found}" if found else ""


def nobody_changes_nothing(apply: Apply, case: Case) -> str:
    """Without a token that has cells the output is `before`."""
    given = summing(case)
    given["spans"][:, 2] = 0
    return other_bits(apply(given), {"out": given["before"]})


def scoring(case: Case) -> Arguments:
    given = scene(case)
    return given | {"before": np.zeros((given["q"].shape[1], ROWS, PARTS), np.float32)}


def scores_scale(apply: Apply, case: Case) -> str:
    """Queries times -2 give scores times -2, exactly."""
    given = scoring(case)
    once, twice = apply(given)["out"], apply({**given, "q": given["q"] * np.float32(-2)})["out"]
    return other_bits({"out": twice + 0}, {"out": once * np.float32(-2) + 0})


def blocks_alone(apply: Apply, case: Case) -> str:
    """A block of queries has the same scores alone, and changes no other rows."""
    given = scoring(case)
    together, own = apply(given)["out"], (given["spans"][:, 2] - 1) // 64
    before = np.full_like(given["before"], 7)
    for b in np.unique(own):
        spans = given["spans"].copy()
        spans[own != b, 2] = 0
        behind = own[-1] * 64 + np.arange(CELLS - own[-1] * 64)  # the last block is partial
        if b != own[-1]:
            spoilt = given["k"].copy()
            spoilt[given["lists"][0, behind]] = 0xFF
        else:
            spoilt = given["k"]
        want = before.copy()
        want[:, b % ROWS, : b + 1] = together[:, b % ROWS, : b + 1]
        got = apply({**given, "spans": spans, "k": spoilt, "before": before})
        if found := other_bits(got, {"out": want}):
            return f"block {b} alone: {found}"
    return ""


def choosing(case: Case) -> Arguments:
    """Three heads, one of each pattern, with few ties."""
    rng, ends = case.rng(), CELLS - TOKENS + 1 + np.arange(TOKENS)
    return {
        "kinds": np.array([0, 1, 2], np.int32),
        "sizes": np.array([[3, 70], [9, 7], [4, 0]], np.int32),
        "sums": rng.random((3, 2, CELLS), np.float32),
        "scores": rng.standard_normal((3, ROWS, PARTS), np.float32),
        "spans": np.stack([0 * ends, 0 * ends, ends], axis=1).astype(np.int32),
        "first": 2,
        "recent": 3,
        "before": np.zeros((3, ROWS, CELLS), np.uint8),
    }


def larger_budgets_see_more(apply: Apply, case: Case) -> str:
    """Increasing any parameter only adds cells to the mask, and large ones select all."""
    given = choosing(case)
    for number in (0, 1):
        fewer = np.zeros_like(given["before"])
        for count in (10, 11, 40, CELLS):
            sizes = given["sizes"].copy()
            sizes[:, number] = count
            seen = apply({**given, "sizes": sizes})["out"]
            if (fewer > seen).any():
                return f"{count} see less than fewer do"
            fewer = seen
        for b in np.unique((given["spans"][:, 2] - 1) // 64):
            want = np.arange(CELLS) < min((b + 1) * 64, CELLS)
            whole = (0, 1, 2) if number == 0 else (0, 1)
            if any((seen[head, b % ROWS] != want).any() for head in whole):
                return f"of {CELLS} cells not all are seen, up to block {b}"
    return ""


def who_is_alike_sees_alike(apply: Apply, case: Case) -> str:
    """A head's mask does not depend on other heads' patterns, nor a block's on other blocks."""
    given = choosing(case)
    together, own = apply(given)["out"], (given["spans"][:, 2] - 1) // 64
    first = given["spans"].copy()
    first[own != own[-1], 2] = 0  # sums and scores are unchanged
    want = given["before"].copy()
    want[:, own[-1] % ROWS] = together[:, own[-1] % ROWS]
    if found := other_bits(apply({**given, "spans": first}), {"out": want}):
        return f"block {own[-1]} alone: {found}"
    for head in range(3):
        kinds = np.full(3, head, np.int32)
        if (apply({**given, "kinds": kinds})["out"][head] != together[head]).any():
            return f"head {head} sees other cells if all heads have its pattern"
    return ""


SUM_LAWS = (
    Law("each-query-gives-one", each_query_gives_one),
    Law("others-change-no-bit", others_change_no_bit),
    Law("nobody-changes-nothing", nobody_changes_nothing),
)
SCORE_LAWS = (Law("scores-scale", scores_scale), Law("blocks-alone", blocks_alone))
PATTERN_LAWS = (
    Law("larger-budgets-see-more", larger_budgets_see_more),
    Law("alike-sees-alike", who_is_alike_sees_alike),
)
