"""Laws of attention over compressed pages and cells in any page format, for one sequence."""

from typing import Any

import numpy as np

from reference.formats import FORMATS
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array

KV_HEADS, HEAD_DIM, CELLS = 2, 64, 40


def cells_from(rng: np.random.Generator, tokens: int, first: int) -> Arguments:
    """Queries of `tokens` tokens, and cells from position `first` on, some of which they see."""
    heads = 2 * KV_HEADS
    cells = rng.standard_normal((2, CELLS, KV_HEADS * HEAD_DIM), dtype=np.float32)
    return {
        "q": rng.standard_normal((tokens, heads, HEAD_DIM), dtype=np.float32),
        "k": FORMATS["F16"].quantise(cells[0]),
        "v": FORMATS["F16"].quantise(cells[1]),
        "lists": rng.permutation(CELLS).astype(np.int32)[None],
        "cell_positions": (first + np.arange(CELLS)).astype(np.int32),
        "slopes": (2.0 ** -rng.integers(2, 6, heads)).astype(np.float32),
        "sinks": np.full(heads, -np.inf, np.float32),
        "softcap": 0.0,
        "format": "F16",
    }


def as_cells(given: Arguments, rows: dict[str, Array], group: int) -> Arguments:
    """The same without pages: their keys and values, `rows` of bytes by name in token order, become
    cells before the others."""
    count, tokens = group * given["page_lists"].shape[1], len(given["q"])
    plain = {**given, "packed": np.zeros(tokens, np.int32)}
    for name, own in rows.items():
        plain[name] = np.vstack([own, given[name]])
    positions = np.append(np.arange(count), given["cell_positions"])
    lists = [
        np.r_[np.arange(group * n), count + given["lists"][0, b:e]]
        for n, (_, b, e) in zip(given["packed"], given["spans"], strict=True)
    ]
    return {
        **plain,
        "cell_positions": positions.astype(np.int32),
        "lists": np.stack([np.resize(own, count + CELLS) for own in lists]).astype(np.int32),
        "spans": np.array([[t, 0, len(own)] for t, own in enumerate(lists)], np.int32),
        "page_lists": np.repeat(given["page_lists"], tokens, axis=0),
    }


def where_a_page_lies_changes_no_bit(apply: Apply, given: Arguments, rng: Any) -> str:
    """Permuting the pages of the cache and their lists changes no bit; nor do unseen pages, NaN
    included."""
    pages = given["k_pages"]
    moved = rng.permutation(len(pages) + 3)  # new index -> old index
    more = np.full((3, *pages.shape[1:]), 0xFF, np.uint8)
    elsewhere = {n: np.concatenate([given[n], more])[moved] for n in ("k_pages", "v_pages")}
    elsewhere["page_lists"] = np.argsort(moved).astype(np.int32)[given["page_lists"]]
    found = other_bits(apply({**given, **elsewhere}), apply(given))
    return f"pages permuted: {found}" if found else ""


def a_page_beyond_is_not_seen(apply: Apply, given: Arguments) -> str:
    """Pages after those that a token sees change no bit of its output."""
    last, slots = given["page_lists"][0, -1], given["page_lists"].shape[1]
    pages = {name: given[name].copy() for name in ("k_pages", "v_pages")}
    for page in pages.values():
        page[last] = 0xFF
    fewer = np.flatnonzero(given["packed"] < slots)
    got, want = (apply(one)["out"][fewer] for one in ({**given, **pages}, given))
    found = other_bits({"out": got}, {"out": want})
    return f"a page beyond those of a token: {found}" if found else ""
