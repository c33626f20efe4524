"""Laws of page selection."""

from typing import Any

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

CAPACITY, PAGE, PAGES, HEADS = 60, 8, 6, 2


def scene(case: Case) -> Arguments:
    """Keys of two heads in scattered cells, and their list, all of whose pages are stale."""
    rng = case.rng()
    assert case.format is not None
    layout, head_dim = FORMATS[case.format], case.shape["head_dim"]
    keys = rng.standard_normal((CAPACITY, HEADS * head_dim), np.float32)
    dims = 1, HEADS, PAGES, 2, layout.row_bytes(head_dim)
    return {
        "k": layout.quantise(keys),
        "lists": rng.permutation(CAPACITY).astype(np.int32)[None],
        "stale": np.array([[0, PAGES]], np.int32),
        "page": PAGE,
        "before": rng.integers(0, 256, dims, np.uint8),
        "format": case.format,
    }


def where_a_cell_lies_changes_no_bit(apply: Apply, case: Case) -> str:
    """Permuting the cells, with NaN in those of no page, changes no bit."""
    given = scene(case)
    moved = case.rng().permutation(CAPACITY)  # new index -> old index
    lists = np.argsort(moved).astype(np.int32)[given["lists"]]
    k = given["k"][moved]
    k[lists[0, PAGES * PAGE :]] = 0xFF
    return other_bits(apply({**given, "k": k, "lists": lists}), apply(given))


def pages_in_turns(apply: Apply, case: Case) -> str:
    """Pages in two calls give the bits of one call; no page gives `before`."""
    given = scene(case)
    cut = int(case.rng().integers(1, PAGES))
    out = given["before"]
    for first, end in ((cut, cut), (0, cut), (cut, PAGES)):
        stale = np.array([[first, end]], np.int32)
        out = apply({**given, "stale": stale, "before": out})["out"]
        if first == end and (found := other_bits({"out": out}, {"out": given["before"]})):
            return f"no page: {found}"
    return other_bits({"out": out}, apply(given))


def a_key_alone_is_both(apply: Apply, case: Case) -> str:
    """A page of one cell has its key as minimum and maximum, bit for bit."""
    given = {**scene(case), "page": 1}
    got = apply(given)["out"]
    keys = given["k"][given["lists"][0, :PAGES]].reshape(PAGES, HEADS, 1, -1).transpose(1, 0, 2, 3)
    want = np.ascontiguousarray(np.repeat(keys, 2, axis=2)[None])
    return other_bits({"out": got}, {"out": want})


def scored(case: Case, extremes: Array) -> Arguments:
    """A token with two heads for each KV head that scores all pages [1 HEADS PAGES 2 dim]."""
    assert case.format is not None
    q = case.rng().standard_normal((1, 2 * HEADS, extremes.shape[-1]), np.float32)
    rows = FORMATS[case.format].quantise(extremes.reshape(-1, extremes.shape[-1]))
    return {
        "q": q,
        "extremes": rows.reshape(*extremes.shape[:4], -1),
        "spans": np.array([[0, 0, (PAGES + 1) * PAGE]], np.int32),
        "page": PAGE,
        "before": np.zeros((1, HEADS, PAGES), np.float32),
        "format": case.format,
    }


def _extremes(case: Case) -> Array:
    dims = 1, HEADS, PAGES, 2, case.shape["head_dim"]
    return np.sort(case.rng().standard_normal(dims, np.float32), axis=3)


def wider_pages_score_no_less(apply: Apply, case: Case) -> str:
    """Widening the extremes never lowers a score: rounding is monotonic."""
    extremes = _extremes(case)
    near = apply(scored(case, extremes))["out"]
    extremes[:, :, ::2, 0] -= 1
    extremes[:, :, 1::2, 1] += 1
    far = apply(scored(case, extremes))["out"]
    lower = far < near
    return f"{lower.sum()} wider pages score less" if lower.any() else ""


def a_page_has_its_own_score(apply: Apply, case: Case) -> str:
    """Permuting the pages permutes the scores, bit for bit, for any other tokens; entries after a
    token's whole pages are not read."""
    extremes, order = _extremes(case), case.rng().permutation(PAGES)
    usual = apply(scored(case, extremes))["out"]
    given = scored(case, np.ascontiguousarray(extremes[:, :, order]))
    given["extremes"][:, :, 4:] = 0xFF
    given["spans"][0, 2] = 4 * PAGE + 1
    got = apply(given)["out"][:, :, :4]
    want = usual[:, :, order[:4]]
    return other_bits({"out": np.ascontiguousarray(got)}, {"out": np.ascontiguousarray(want)})


def choosing(case: Case, end: int, chosen: int) -> dict[str, Any]:
    rng = case.rng()
    scores = np.round(3 * rng.standard_normal((1, HEADS, PAGES))).astype(np.float32)
    wide = CAPACITY * HEADS
    return {
        "scores": scores,
        "lists": rng.permutation(CAPACITY).astype(np.int32)[None],
        "spans": np.array([[0, 0, end]], np.int32),
        "page": PAGE,
        "chosen": chosen,
        "kv_heads": HEADS,
        "before": rng.integers(0, 2**31, (HEADS, wide), np.int32),
    }


def listed(found: dict[str, Array]) -> list[list[int]]:
    """The entries of each row's span."""
    return [
        found["out"][row, begin:end].tolist() for row, begin, end in found["chosen_spans"].tolist()
    ]


def all_pages_are_the_text(apply: Apply, case: Case) -> str:
    """With as many pages chosen as there are, each head has the sequence's list, in order."""
    for end in (1, PAGE, PAGE + 1, PAGES * PAGE, PAGES * PAGE + 3):
        given = choosing(case, end, PAGES + 1)
        want = [(given["lists"][0, :end] * HEADS + g).tolist() for g in range(HEADS)]
        if (got := listed(apply(given))) != want:
            return f"all pages of {end} cells chosen: {got}"
    return ""


def more_choose_more(apply: Apply, case: Case) -> str:
    """A larger budget reads a superset of pages, the token's own page always included."""
    end = PAGES * PAGE + 3
    fewer: list[set[int]] = [set() for _ in range(HEADS)]
    for chosen in range(1, PAGES + 2):
        given = choosing(case, end, chosen)
        own = {int(cell) * HEADS for cell in given["lists"][0, PAGES * PAGE : end]}
        got = [set(one) for one in listed(apply(given))]
        for g, (few, many) in enumerate(zip(fewer, got, strict=True)):
            if not few <= many or not {cell + g for cell in own} <= many:
                return f"{chosen} pages omit some that fewer include"
        fewer = got
    return ""


EXTREMES_LAWS = (
    Law("cells-anywhere", where_a_cell_lies_changes_no_bit),
    Law("pages-in-turns", pages_in_turns),
    Law("one-is-both", a_key_alone_is_both),
)
SCORES_LAWS = (
    Law("wider-no-less", wider_pages_score_no_less),
    Law("pages-alone", a_page_has_its_own_score),
)
CHOICE_LAWS = (
    Law("all-are-the-text", all_pages_are_the_text),
    Law("more-choose-more", more_choose_more),
)
