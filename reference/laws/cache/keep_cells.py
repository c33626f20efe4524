"""Laws of eviction from a KV cache."""

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Case, Law

HEADS, HELD = 3, 41
CAPACITY, KEPT = 60, 17


def more_keep_more(apply: Apply, case: Case) -> str:
    """A larger budget keeps a superset; a full budget keeps all cells."""
    scores = np.round(3 * case.rng().standard_normal((HEADS, HELD))).astype(np.float32)
    fewer = np.zeros((HEADS, 0), np.int32)
    for kept in (5, 6, 11, 40, HELD):
        slots = apply({"scores": scores, "kept": kept, "first": 2, "last": 3})["out"]
        if any(np.setdiff1d(few, more).size for few, more in zip(fewer, slots, strict=True)):
            return f"{kept} omit cells that fewer include"
        fewer = slots
    return other_bits({"out": fewer}, {"out": np.tile(np.arange(HELD, dtype=np.int32), (HEADS, 1))})


def equals_go_by_place(apply: Apply, case: Case) -> str:
    """Of equal scores, +0 and -0 included, the earlier ones are kept."""
    scores = np.where(case.rng().random((HEADS, HELD)) < 0.5, np.float32(0), np.float32(-0.0))
    got = apply({"scores": scores, "kept": 9, "first": 0, "last": 2})
    want = np.array([[*range(7), HELD - 2, HELD - 1]] * HEADS, np.int32)
    return other_bits(got, {"out": want})


def ends_have_no_score(apply: Apply, case: Case) -> str:
    """The first and last are kept whatever their scores, which do not affect the others."""
    scores = case.rng().standard_normal((HEADS, HELD), np.float32)
    given = {"scores": scores, "kept": 12, "first": 4, "last": 3}
    usual = apply(given)
    for value in (-np.inf, np.inf):
        others = scores.copy()
        others[:, :4] = others[:, -3:] = value
        if found := other_bits(apply({**given, "scores": others}), usual):
            return f"scores of the ends are {value}: {found}"
    return ""


def scene(case: Case) -> Arguments:
    rng = case.rng()
    assert case.format is not None
    block = FORMATS[case.format].block
    head_dim = -(-case.shape["head_dim"] // block) * block
    order = rng.permutation(CAPACITY).astype(np.int32)
    slots = [np.sort(rng.choice(HELD, KEPT, replace=False)) for _ in range(HEADS)]
    row_bytes = HEADS * FORMATS[case.format].row_bytes(head_dim)
    return {
        "slots": np.array(slots, np.int32),
        "cells": order[:HELD],
        "into": order[HELD - KEPT : HELD].copy(),
        "before": rng.integers(0, 256, (CAPACITY, row_bytes), np.uint8),
        "format": case.format,
    }


def keeping_the_last_moves_nothing(apply: Apply, case: Case) -> str:
    """Keeping the last slots of all heads in their own cells changes nothing."""
    given = scene(case)
    given["slots"][:] = np.arange(HELD - KEPT, HELD)
    return other_bits(apply(given), {"out": given["before"]})


def elsewhere_is_the_same(apply: Apply, case: Case) -> str:
    """Copies in free cells equal those made in place, and held cells are unchanged."""
    given = scene(case)
    into = np.setdiff1d(np.arange(CAPACITY), given["cells"])[:KEPT].astype(np.int32)
    here, there = apply(given)["out"], apply({**given, "into": into})["out"]
    stays = {"out": given["before"][given["cells"]]}
    if found := other_bits({"out": there[given["cells"]]}, stays):
        return f"held cells after copies to free ones: {found}"
    return other_bits({"out": there[into]}, {"out": here[given["into"]]})


TOP_LAWS = (
    Law("more-keep-more", more_keep_more),
    Law("equals-by-place", equals_go_by_place),
    Law("ends-have-no-score", ends_have_no_score),
)
MOVE_LAWS = (
    Law("the-last-stay", keeping_the_last_moves_nothing),
    Law("elsewhere-the-same", elsewhere_is_the_same),
)
