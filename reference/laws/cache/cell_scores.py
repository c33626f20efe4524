"""Laws of cell scores."""

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

CAPACITY, HELD, HEADS = 50, 37, 3


def scene(case: Case) -> Arguments:
    """Keys of three heads, in scattered cells."""
    rng = case.rng()
    assert case.format is not None
    block = FORMATS[case.format].block
    head_dim = -(-case.shape["head_dim"] // block) * block
    keys = rng.standard_normal((CAPACITY, HEADS * head_dim), np.float32)
    cells = rng.permutation(CAPACITY)[:HELD].astype(np.int32)
    k = FORMATS[case.format].quantise(keys)
    return {"k": k, "cells": cells, "kv_heads": HEADS, "format": case.format}


def where_a_cell_lies_changes_no_bit(apply: Apply, case: Case) -> str:
    """Permuting the cells, with NaN in those not listed, changes no bit."""
    given = scene(case)
    moved = case.rng().permutation(CAPACITY)  # new index -> old index
    cells = np.argsort(moved).astype(np.int32)[given["cells"]]
    k = given["k"][moved]
    k[np.setdiff1d(np.arange(CAPACITY), cells)] = 0xFF
    return other_bits(apply({**given, "k": k, "cells": cells}), apply(given))


def a_cell_alone_has_its_score(apply: Apply, case: Case) -> str:
    """A key's score does not depend on other cells."""
    given = scene(case)
    whole = apply(given)["out"]
    some = apply({**given, "cells": given["cells"][5:9].copy()})["out"]
    return other_bits({"out": some}, {"out": np.ascontiguousarray(whole[:, 5:9])})


def the_zero_key_is_first(apply: Apply, case: Case) -> str:
    """A zero key scores 0, the maximum."""
    given = scene(case)
    zeros = np.zeros((1, FORMATS[case.format or "F32"].dequantise(given["k"][:1]).size), np.float32)
    given["k"][given["cells"][3]] = FORMATS[case.format or "F32"].quantise(zeros)[0]
    out = apply(given)["out"]
    if (out[:, 3] != 0).any() or (out > 0).any():
        return f"a key of zeros scores {out[0, 3]}, others up to {out.max()}"
    return ""


def keys_alike_are_worth_the_least(apply: Apply, case: Case) -> str:
    """If all keys are equal each scores -1; one that is opposite to the others scores 1, the
    highest."""
    given = scene(case)
    layout = FORMATS[case.format or "F32"]
    key = np.ones((1, layout.dequantise(given["k"][:1]).size), np.float32)
    same, opposite = layout.quantise(key), layout.quantise(-key)
    if not np.allclose(layout.dequantise(same), -layout.dequantise(opposite), rtol=0.2):
        return ""
    given["k"][:] = same
    alike = apply(given)["out"]
    given["k"][given["cells"][3]] = opposite
    out = apply(given)["out"]
    if not (np.allclose(alike, -1, atol=1e-5) and np.allclose(out[:, 3], 1, atol=1e-2)):
        return f"equal keys score {alike[0, 0]}, an opposite one {out[0, 3]}"
    return ""


def one_is_itself(apply: Apply, case: Case) -> str:
    """Pooling of size one returns the scores, bit for bit."""
    scores = _scores(case)
    got = apply({"scores": scores, "size": 1, "last": 2})
    return other_bits({"out": got["out"] + 0}, {"out": scores + 0})


def moved_along(apply: Apply, case: Case) -> str:
    """Scores shifted by one give means shifted by one, bit for bit, away from the ends; scores in
    the window of the last are copied and never pooled."""
    scores, size, last = _scores(case), 5, 4
    out = apply({"scores": scores, "size": size, "last": last})["out"]
    later = np.roll(scores, 1, axis=1)
    later[:, -last:] = np.nan
    got = apply({"scores": later, "size": size, "last": last})["out"]
    inner = slice(3, HELD - last - 3)
    if not np.isnan(got[:, -last:]).all():
        return "the last scores are not copied"
    want = np.ascontiguousarray(out[:, inner])
    return other_bits({"out": np.ascontiguousarray(got[:, 4 : HELD - last - 2])}, {"out": want})


def _scores(case: Case) -> Array:
    return case.rng().standard_normal((HEADS, HELD), np.float32)


ANYWHERE = Law("cells-anywhere", where_a_cell_lies_changes_no_bit)
KEYS_LAWS = {
    "knorm": (
        ANYWHERE,
        Law("cells-alone", a_cell_alone_has_its_score),
        Law("zeros-come-first", the_zero_key_is_first),
    ),
    "keydiff": (ANYWHERE, Law("alike-come-last", keys_alike_are_worth_the_least)),
}
POOL_LAWS = (Law("one-is-itself", one_is_itself), Law("moves-along", moved_along))
