"""Laws of attention over pages that two blocks share and cells, beside that tokens are alone."""

import numpy as np

from reference.formats import FORMATS
from reference.formats.minicache import GROUP, LENGTH_X, page_bytes, page_of
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

TOKENS, SLOTS, KV_HEADS, HEAD_DIM = 5, 2, 2, 64
CELLS = 40
BLOCKS = 2  # the lower and the upper


def scene(case: Case, retained: int = 13, tokens: int = TOKENS) -> tuple[Arguments, Array]:
    """Tokens of one sequence over pages and some cells; and the float16 vectors of the pages'
    tokens, keys and values of both blocks [2, 2, slots, 256, kv_heads, head_dim]."""
    rng, heads = case.rng(), 2 * KV_HEADS
    t, count = np.arange(tokens), GROUP * SLOTS
    cells = rng.standard_normal((2, CELLS, KV_HEADS * HEAD_DIM), dtype=np.float32)
    vectors = rng.standard_normal((2, BLOCKS, SLOTS, GROUP, KV_HEADS, HEAD_DIM))
    vectors = vectors.astype(np.float16)
    given: Arguments = {
        "q": rng.standard_normal((tokens, heads, HEAD_DIM), dtype=np.float32),
        "k": FORMATS["F16"].quantise(cells[0]),
        "v": FORMATS["F16"].quantise(cells[1]),
        "lists": rng.permutation(CELLS).astype(np.int32)[None],
        "spans": np.stack([0 * t, 0 * t, 20 + t % 20], axis=1).astype(np.int32),
        "positions": (count + 19 + t % 20).astype(np.int32),
        "cell_positions": (count + np.arange(CELLS)).astype(np.int32),
        "slopes": (2.0 ** -rng.integers(2, 6, heads)).astype(np.float32),
        "sinks": np.full(heads, -np.inf, np.float32),
        "scale": HEAD_DIM**-0.5,
        "softcap": 0.0,
        "page_lists": rng.permutation(SLOTS).astype(np.int32)[None],
        "packed": (SLOTS - t % 2).astype(np.int32),
        "upper": case.seed % BLOCKS,
        "format": "F16",
    }
    for name, of_blocks in zip(("k_pages", "v_pages"), vectors, strict=True):
        pages = np.empty((SLOTS, KV_HEADS, page_bytes(HEAD_DIM, retained)), np.uint8)
        for slot, page in enumerate(given["page_lists"][0]):
            for g in range(KV_HEADS):
                own = rng.standard_normal((5, GROUP)).astype(np.float32) / 8
                own[LENGTH_X:] = np.abs(own[LENGTH_X:]) + 1
                x, y = of_blocks[:, slot, :, g]
                pages[page, g] = page_of(x, y, own, pages.shape[2])
        given[name] = pages
    return given, vectors


def all_retained_is_attention(apply: Apply, case: Case) -> str:
    """Where all tokens are retained, a block's pages are its cells, bit for bit: for few tokens and
    for many, ALiBi included."""
    for tokens in (TOKENS, 12):
        given, vectors = scene(case, retained=GROUP, tokens=tokens)
        count, plain = GROUP * SLOTS, {**given, "packed": np.zeros(tokens, np.int32)}
        for name, of_blocks in zip("kv", vectors, strict=True):
            rows = of_blocks[given["upper"]].reshape(count, -1)
            plain[name] = np.vstack([rows.view(np.uint8), given[name]])
        plain["cell_positions"] = np.append(np.arange(count), given["cell_positions"])
        plain["cell_positions"] = plain["cell_positions"].astype(np.int32)
        lists = [
            np.r_[np.arange(GROUP * n), count + given["lists"][0, b:e]]
            for n, (_, b, e) in zip(given["packed"], given["spans"], strict=True)
        ]
        plain["lists"] = np.stack([np.resize(own, count + CELLS) for own in lists]).astype(np.int32)
        plain["spans"] = np.array([[t, 0, len(own)] for t, own in enumerate(lists)], np.int32)
        plain["page_lists"] = np.repeat(given["page_lists"], tokens, axis=0)
        if found := other_bits(apply(given), apply(plain)):
            return f"{tokens} tokens: {found}"
    return ""


def lengths_are_factors(apply: Apply, case: Case) -> str:
    """Merged keys of half the length, and a scale of twice as much, give the same bits; the other
    block's lengths change none."""
    given, _ = scene(case, retained=0)
    given["spans"] = np.zeros_like(given["spans"])  # pages alone
    changed = {**given, "scale": 2 * given["scale"], "k_pages": given["k_pages"].copy()}
    lengths = changed["k_pages"][:, :, 2 * HEAD_DIM * GROUP :][:, :, : 8 * GROUP]
    own = np.ascontiguousarray(lengths).view(np.float32).reshape(SLOTS, KV_HEADS, BLOCKS, GROUP)
    own[:, :, given["upper"]] /= 2
    own[:, :, 1 - given["upper"]] = np.nan
    lengths[:] = own.view(np.uint8).reshape(lengths.shape)
    return other_bits(apply(changed), apply(given))


def where_a_page_lies_changes_no_bit(apply: Apply, case: Case) -> str:
    """Moving pages about the cache, lists following, gives the same bits; so does what pages hold
    that nobody sees, NaN even."""
    given, _ = scene(case)
    moved = case.rng().permutation(SLOTS + 3)  # new place -> old place
    more = np.full((3, *given["k_pages"].shape[1:]), 0xFF, np.uint8)
    elsewhere = {n: np.concatenate([given[n], more])[moved] for n in ("k_pages", "v_pages")}
    elsewhere["page_lists"] = np.argsort(moved).astype(np.int32)[given["page_lists"]]
    found = other_bits(apply({**given, **elsewhere}), apply(given))
    return f"pages in other places: {found}" if found else ""


def what_is_not_merged_yet_is_not_seen(apply: Apply, case: Case) -> str:
    """A page beyond those that a token sees changes no bit of it."""
    given, _ = scene(case)
    last = given["page_lists"][0, -1]
    pages = {name: given[name].copy() for name in ("k_pages", "v_pages")}
    for page in pages.values():
        page[last] = 0xFF
    fewer = np.flatnonzero(given["packed"] < SLOTS)
    got, want = (apply(one)["out"][fewer] for one in ({**given, **pages}, given))
    found = other_bits({"out": got}, {"out": want})
    return f"a page that is not merged for a token: {found}" if found else ""


LAWS = (
    Law("all-retained-is-attention", all_retained_is_attention),
    Law("lengths-are-factors", lengths_are_factors),
    Law("pages-anywhere", where_a_page_lies_changes_no_bit),
    Law("pages-out-of-sight", what_is_not_merged_yet_is_not_seen),
)
