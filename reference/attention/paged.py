"""Shared by attention over compressed pages: a token reads pages of `group` tokens each from
position 0, for all kv_heads, followed by cells; page formats differ."""

import numpy as np

from reference.attention import attention as of_cells
from reference.attention.attention import attention, errors, limit_scores, rows_of
from reference.op import Arguments, Array, Case, Shape, out_of_range

SIZES = "tokens", "heads", "kv_heads", "head_dim", "capacity", "sequences", "alibi"


def attend_pages(given: Arguments, held: Array) -> Array:
    """attention of every token over its pages and the cells that it sees; `held` are all decoded
    pages, keys and values, float32 [2, pages, group, kv_heads, head_dim] -> float64 [tokens, heads,
    head_dim]."""
    out = np.zeros(given["q"].shape)
    for t in range(len(out)):
        out[t] = attention(**_seen_by(t, given, held))[0]
    return out


def bound_over_pages(
    given: Arguments, held: Array, out: Array, of_scores: float, of_values: float
) -> Array:
    """The bound of `attend_pages`: attention's, with pages and cells as parts."""
    off = np.zeros(out.shape)
    for t, own in enumerate(out):
        seen = _seen_by(t, given, held)
        off[t] = errors(seen, own[None], of_scores, of_values, parts=2)[0]
    return off


def _seen_by(t: int, given: Arguments, held: Array) -> Arguments:
    """attention's arguments for one token, with its pages' tokens placed before its cells."""
    sequence, begin, end = given["spans"][t]
    pages = given["page_lists"][sequence, : given["packed"][t]]
    cells, (_, _, group, kv_heads, head_dim) = given["lists"][sequence, begin:end], held.shape
    packed = group * len(pages)
    count = packed + len(cells)
    seen = np.empty((2, count, kv_heads, head_dim), np.float32)
    for rows, name, own in zip(seen, "kv", held, strict=True):
        rows[:packed] = own[pages].reshape(packed, kv_heads, head_dim)
        rows[packed:] = rows_of(given[name][cells], head_dim, given["format"])
    keys, values = seen.reshape(2, count, kv_heads * head_dim).view(np.uint8)
    where = np.arange(packed), given["cell_positions"][cells]
    same = {name: given[name] for name in ("slopes", "sinks", "scale", "softcap")}
    return {
        **same, "q": given["q"][t : t + 1], "k": keys, "v": values, "lists": np.arange(count)[None],
        "spans": np.array([[0, 0, count]]), "positions": given["positions"][t : t + 1],
        "cell_positions": np.concatenate(where), "format": "F32",
    }  # fmt: skip


def cells_and_lists(case: Case, rng: np.random.Generator, group: int) -> tuple[Arguments, Array]:
    """attention's arguments with page lists, a random number of pages for each token, and which
    pages any token sees: bool [pages]. Pages hold the positions before those of the cells."""
    shape = case.shape
    own = {name: shape[name] for name in SIZES} | {"windowed": 1, "softcapped": shape["softcapped"]}
    given = of_cells.make(Case(own, case.values, case.seed, case.format, case.largest))
    tokens, slots, pages = (shape[name] for name in ("tokens", "slots", "pages"))
    page_lists = np.stack([rng.permutation(pages)[:slots] for _ in range(shape["sequences"])])
    packed = rng.integers(0, slots + 1, tokens)
    packed[tokens - tokens // 2 :] = slots
    seen = np.zeros(pages, bool)
    for sequence, count in zip(given["spans"][:, 0], packed, strict=True):
        seen[page_lists[sequence, :count]] = True
    for name in ("positions", "cell_positions"):
        given[name] += np.int32(group * slots - given["cell_positions"].min())
    lists = {"page_lists": page_lists.astype(np.int32).reshape(-1, slots)}
    return {**given, **lists, "packed": packed.astype(np.int32)}, seen


def limit_page_scores(given: Arguments, keys: Array, case: Case) -> Array:
    """`limit_scores` for some pages' keys [pages, group, kv_heads, head_dim] and the last cells'
    keys."""
    _, group, *_, head_dim = keys.shape
    cells = [given["lists"][s, b:e] for s, b, e in given["spans"]]
    some = [rows_of(given["k"][own[:group]], head_dim, "F16") for own in cells[-2:]]
    shown = np.concatenate([keys.reshape(-1, *keys.shape[2:]), *some])
    return limit_scores(given["q"], given["scale"], shown, case)


def complaint(inputs: Arguments) -> str:
    """An error in the page lists or in attention's arguments; "" if there is none."""
    slots = inputs["page_lists"].shape[1]
    if inputs["v_pages"].shape != inputs["k_pages"].shape:
        return "k_pages and v_pages have different shapes"
    return (
        of_cells.complaint(inputs)
        or out_of_range("page_lists", inputs["page_lists"], len(inputs["k_pages"]))
        or out_of_range("packed", inputs["packed"], slots + 1)
    )


def fit_pages(shape: Shape) -> Shape:
    """The shape with at least one page for every slot."""
    slots = max(1, shape["slots"])
    return {**shape, "slots": slots, "pages": max(slots, shape["pages"])}


def signature(pages: str, more: str = "") -> str:
    """attention's signature with pages of these axes."""
    lists = f", k_pages: {pages}, v_pages: {pages}, page_lists: i32[sequences slots]"
    return of_cells.OP.signature.replace(" -> ", f"{lists}, packed: i32[tokens]{more} -> ")


def axes(head_dim: tuple[int, ...], **of_pages: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """attention's sizes to try, and those of pages."""
    return {
        "tokens": (1, 2, 3, 5, 8, 9),
        "heads": (1, 2, 3, 4, 6, 8, 9),
        "kv_heads": (1, 2, 3, 4, 5, 8),
        "head_dim": head_dim,
        "capacity": (1, 2, 15, 33, 129, 257),
        **of_pages,
        "sequences": (1, 2, 3, 8),
        "alibi": (1, 0),
        "softcapped": (1, 0),
    }
