"""Laws of attention over pages and cells, beside that tokens are alone."""

import numpy as np

from reference.formats import FORMATS
from reference.formats.kivi import GROUP, PAGE_BYTES, page_of_keys, page_of_values
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

TOKENS, SLOTS, KV_HEADS, HEAD_DIM = 5, 11, 2, 64
CELLS = 40


def scene(case: Case) -> Arguments:
    """Tokens of one sequence, over pages of numbers that have four levels, so that two bits hold
    them exactly, and over some cells."""
    rng, heads = case.rng(), 2 * KV_HEADS
    tokens = np.arange(TOKENS)
    keys, values = levels(rng), levels(rng)
    cells = rng.standard_normal((2, CELLS, KV_HEADS * HEAD_DIM), dtype=np.float32)
    return {
        "q": rng.standard_normal((TOKENS, heads, HEAD_DIM), dtype=np.float32),
        "k": FORMATS["F16"].quantise(cells[0]),
        "v": FORMATS["F16"].quantise(cells[1]),
        "lists": rng.permutation(CELLS).astype(np.int32)[None],
        "spans": np.stack([0 * tokens, tokens, 20 + tokens], axis=1).astype(np.int32),
        "positions": (GROUP * SLOTS + 20 + tokens).astype(np.int32),
        "cell_positions": (GROUP * SLOTS + np.arange(CELLS)).astype(np.int32),
        "slopes": (2.0 ** -rng.integers(2, 6, heads)).astype(np.float32),
        "sinks": np.full(heads, -np.inf, np.float32),
        "scale": HEAD_DIM**-0.5 / 4,
        "softcap": 0.0,
        "k_pages": np.stack([page_of_keys(x) for x in keys]),
        "v_pages": np.stack([page_of_values(x) for x in values]),
        "page_lists": rng.permutation(SLOTS).astype(np.int32)[None],
        "packed": (SLOTS - tokens % 3).astype(np.int32),
        "format": "F16",
    }


def levels(rng: np.random.Generator) -> Array:
    """float32 [pages, 32, kv_heads, head_dim]: whole numbers from -1 to 2, both ends in each group
    of tokens and of channels."""
    x = rng.integers(-1, 3, (SLOTS, GROUP, KV_HEADS, HEAD_DIM)).astype(np.float32)
    eye = np.arange(GROUP)
    for channel in range(0, HEAD_DIM, GROUP):
        x[:, eye, :, channel + eye] = -1
        x[:, eye, :, channel + (eye + 1) % GROUP] = 2
    return x


def pages_are_cells(apply: Apply, case: Case) -> str:
    """Tokens that two bits hold exactly weigh in pages what they weigh in cells, ALiBi included."""
    given, rng = scene(case), case.rng()
    numbers = [levels(rng) for _ in "kv"]
    for name, x, page_of in zip("kv", numbers, (page_of_keys, page_of_values), strict=True):
        given[f"{name}_pages"] = np.stack([page_of(page) for page in x])
    order, count = given["page_lists"][0], GROUP * SLOTS
    packed = GROUP * given["packed"]
    plain = {**given, "packed": np.zeros(TOKENS, np.int32)}
    for name, x in zip("kv", numbers, strict=True):
        rows = x[order].reshape(count, -1)
        plain[name] = np.vstack([FORMATS["F16"].quantise(rows), given[name]])
    plain["cell_positions"] = np.append(np.arange(count), given["cell_positions"]).astype(np.int32)
    lists = [
        np.r_[np.arange(n), count + given["lists"][0, b:e]]
        for n, (_, b, e) in zip(packed, given["spans"], strict=True)
    ]
    capacity = count + CELLS
    plain["lists"] = np.stack([np.resize(own, capacity) for own in lists]).astype(np.int32)
    plain["spans"] = np.array([[t, 0, len(own)] for t, own in enumerate(lists)], np.int32)
    plain["page_lists"] = np.repeat(given["page_lists"], TOKENS, axis=0)
    got, want = apply(given)["out"], apply(plain)["out"]
    if np.allclose(got, want, rtol=1e-4, atol=1e-4):
        return ""
    return f"pages give {np.abs(got - want).max():.3g} more or less than cells of the same numbers"


def where_a_page_lies_changes_no_bit(apply: Apply, case: Case) -> str:
    """Moving pages about the cache, lists following, gives the same bits; so does what pages hold
    that nobody sees, NaN even."""
    given = scene(case)
    moved = case.rng().permutation(SLOTS + 3)  # new place -> old place
    more = np.full((3, KV_HEADS, HEAD_DIM, PAGE_BYTES), 0xFF, np.uint8)
    elsewhere = {n: np.concatenate([given[n], more])[moved] for n in ("k_pages", "v_pages")}
    elsewhere["page_lists"] = np.argsort(moved).astype(np.int32)[given["page_lists"]]
    found = other_bits(apply({**given, **elsewhere}), apply(given))
    return f"pages in other places: {found}" if found else ""


def what_is_not_packed_yet_is_not_seen(apply: Apply, case: Case) -> str:
    """A page beyond those that a token sees changes no bit of it."""
    given = scene(case)
    last = given["page_lists"][0, -1]
    pages = {name: given[name].copy() for name in ("k_pages", "v_pages")}
    for page in pages.values():
        page[last] = 0xFF
    fewer = np.flatnonzero(given["packed"] < SLOTS)
    got, want = (apply(one)["out"][fewer] for one in ({**given, **pages}, given))
    found = other_bits({"out": got}, {"out": want})
    return f"a page that is not packed for a token: {found}" if found else ""


LAWS = (
    Law("pages-are-cells", pages_are_cells),
    Law("pages-anywhere", where_a_page_lies_changes_no_bit),
    Law("pages-out-of-sight", what_is_not_packed_yet_is_not_seen),
)
