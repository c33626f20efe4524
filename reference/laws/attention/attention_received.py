"""Laws of the attention that cells receive, beside that tokens may come in turns."""

import numpy as np

from reference.laws.attention import attention
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Case, Law


def scene(case: Case, cells: int, tokens: int = attention.TOKENS) -> Arguments:
    """Attention's, where cells have received nothing yet."""
    given = attention.scene(case, cells, tokens)
    for name in ("v", "positions", "cell_positions", "slopes", "sinks"):
        del given[name]
    return given | {"before": np.zeros((2, 2, cells), np.float32)}


def each_token_gives_one(apply: Apply, case: Case) -> str:
    """All that a sequence's cells receive is one from each query head of each of its tokens."""
    for cells in (attention.CELLS, attention.LONG):
        given = scene(case, cells)
        received = apply(given)["out"].sum(axis=2, dtype=np.float64)
        want = 2 * np.bincount(given["spans"][:, 0], minlength=2)[:, None]
        if not np.allclose(received, np.broadcast_to(want, received.shape), rtol=1e-4):
            return f"cells of {cells} receive {received.tolist()} of {want[:, 0].tolist()} tokens"
    return ""


def others_change_no_bit(apply: Apply, case: Case) -> str:
    """What cells of one sequence receive has the same bits without the tokens of another."""
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
    """Moving cells about the cache, lists following, gives the same bits; so does what cells hold
    that nobody sees, NaN even."""
    for cells in (attention.CELLS, attention.LONG):
        given = scene(case, cells)
        moved = case.rng().permutation(cells)  # new place -> old place
        lists = np.argsort(moved).astype(np.int32)[given["lists"]]
        seen = np.zeros(cells, bool)
        for sequence, begin, end in given["spans"]:
            seen[lists[sequence, begin:end]] = True
        keys = given["k"][moved]
        keys[~seen] = 0xFF
        if found := other_bits(apply({**given, "k": keys, "lists": lists}), apply(given)):
            return f"{cells} cells in other places: {found}"
    return ""


LAWS = (
    Law("each-token-gives-one", each_token_gives_one),
    Law("others-change-no-bit", others_change_no_bit),
    Law("cells-anywhere", where_a_cell_lies_changes_no_bit),
)
