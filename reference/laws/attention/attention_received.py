"""Laws of received attention, in addition to that of batches in two calls."""

import numpy as np

from reference.laws.attention import attention
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Case, Law


def scene(case: Case, cells: int, tokens: int = attention.TOKENS) -> Arguments:
    """attention's, with `before` 0."""
    given = attention.scene(case, cells, tokens)
    for name in ("v", "positions", "cell_positions", "slopes", "sinks"):
        del given[name]
    return given | {"before": np.zeros((2, 2, cells), np.float32)}


def each_token_gives_one(apply: Apply, case: Case) -> str:
    """The weights received by a sequence's cells sum to its tokens times query heads."""
    for cells in (attention.CELLS, attention.LONG):
        given = scene(case, cells)
        received = apply(given)["out"].sum(axis=2, dtype=np.float64)
        want = 2 * np.bincount(given["spans"][:, 0], minlength=2)[:, None]
        if not np.allclose(received, np.broadcast_to(want, received.shape), rtol=1e-4):
            return f"cells of {cells} receive {received.tolist()} of {want[:, 0].tolist()} tokens"
    return ""


def others_change_no_bit(apply: Apply, case: Case) -> str:
    """Another sequence's tokens change no bit of what cells receive."""
    for tokens, cells in ((attention.TOKENS, attention.CELLS), (attention.MANY, attention.LONG)):
        given = scene(case, cells, tokens)
        together = apply(given)["out"]
        for s in (0, 1):
            alone = given["spans"].copy()
            alone[alone[:, 0] != s, 2] = 0
            got = apply({**given, "spans": alone})["out"]
            if found := other_bits({"out": got[s]}, {"out": together[s]}):
                return f"sequence {s} alone: {found}"
    return ""


def where_a_cell_lies_changes_no_bit(apply: Apply, case: Case) -> str:
    """Permuting the cells of the cache and their lists changes no bit; nor do unseen cells, NaN
    included."""
    for cells in (attention.CELLS, attention.LONG):
        given = scene(case, cells)
        moved = case.rng().permutation(cells)  # new index -> old index
        lists = np.argsort(moved).astype(np.int32)[given["lists"]]
        seen = np.zeros(cells, bool)
        for sequence, begin, end in given["spans"]:
            seen[lists[sequence, begin:end]] = True
        keys = given["k"][moved]
        keys[~seen] = 0xFF
        if found := other_bits(apply({**given, "k": keys, "lists": lists}), apply(given)):
            return f"{cells} cells permuted: {found}"
    return ""


LAWS = (
    Law("each-token-gives-one", each_token_gives_one),
    Law("others-change-no-bit", others_change_no_bit),
    Law("cells-anywhere", where_a_cell_lies_changes_no_bit),
)
