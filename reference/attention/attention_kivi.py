"""Attention over a cache of which all but the latest tokens are in two bits: pages of keys and
values, and then cells (Liu et al., KIVI, arXiv 2402.02750)."""

import numpy as np

from reference.attention import attention as of_cells
from reference.attention.attention import LARGEST, attention, errors, rows_of, tamed
from reference.bounds import gamma
from reference.cache.kivi import LARGEST_HALF
from reference.formats.kivi import (
    GROUP,
    PAGE_BYTES,
    keys_of,
    page_of_keys,
    page_of_values,
    values_of,
)  # fmt: skip
from reference.laws.attention_kivi import LAWS
from reference.laws.common import alone, contained
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range


def attention_kivi(
    q: Array, k: Array, v: Array, lists: Array, spans: Array, positions: Array,
    cell_positions: Array, slopes: Array, sinks: Array, scale: float, softcap: float,
    k_pages: Array, v_pages: Array, page_lists: Array, packed: Array, format: str,
) -> Array:  # fmt: skip
    """attention over what the first packed[t] pages of token t's sequence hold, 32 tokens each from
    position 0 on, and over the cells that it sees.

    k_pages, v_pages uint8 [pages, kv_heads, head_dim, 11] (formats/kivi.py); page_lists int32
    [sequences, slots]: pages in the order of their tokens; packed int32 [tokens]. All else is as
    attention has it -> float64 [tokens, heads, head_dim].
    """
    given, out = locals(), np.zeros(q.shape)
    pages = _held(given)
    for t in range(len(q)):
        out[t] = attention(**_seen_by(t, given, pages))[0]
    return out


def _held(given: Arguments) -> tuple[Array, Array]:
    """What all pages hold: keys and values [pages, 32, kv_heads, head_dim]."""
    return keys_of(given["k_pages"]), values_of(given["v_pages"])


def _seen_by(t: int, given: Arguments, of_pages: tuple[Array, Array]) -> Arguments:
    """attention's arguments for one token over its pages and cells, one after the other."""
    sequence, begin, end = given["spans"][t]
    pages = given["page_lists"][sequence, : given["packed"][t]]
    cells, head_dim = given["lists"][sequence, begin:end], given["q"].shape[2]
    packed, kv_heads = GROUP * len(pages), given["k_pages"].shape[1]
    count = packed + len(cells)
    held = np.empty((2, count, kv_heads, head_dim), np.float32)
    for rows, name, own in zip(held, "kv", of_pages, strict=True):
        rows[:packed] = own[pages].reshape(packed, *rows.shape[1:])
        rows[packed:] = rows_of(given[name][cells], head_dim, given["format"])
    keys, values = held.reshape(2, count, kv_heads * head_dim).view(np.uint8)
    where = np.arange(packed), given["cell_positions"][cells]
    same = {name: given[name] for name in ("slopes", "sinks", "scale", "softcap")}
    return {
        **same, "q": given["q"][t : t + 1], "k": keys, "v": values, "lists": np.arange(count)[None],
        "spans": np.array([[0, 0, count]]), "positions": given["positions"][t : t + 1],
        "cell_positions": np.concatenate(where), "format": "F32",
    }  # fmt: skip


def make(case: Case) -> Arguments:
    """As attention's, with pages of which tokens see any number, scattered over the cache; those
    that no token sees hold NaN."""
    rng, shape = case.rng(), case.shape
    names = ("tokens", "heads", "kv_heads", "head_dim", "capacity", "sequences", "alibi")
    own = {name: shape[name] for name in names} | {"windowed": 1, "softcapped": shape["softcapped"]}
    given = of_cells.make(Case(own, case.values, case.seed, case.format, case.largest))
    tokens, slots, kv_heads, head_dim = (
        shape[name] for name in ("tokens", "slots", "kv_heads", "head_dim")
    )
    pages = shape["pages"]
    page_lists = np.stack([rng.permutation(pages)[:slots] for _ in range(shape["sequences"])])
    packed = rng.integers(0, slots + 1, tokens)
    packed[tokens - tokens // 2 :] = slots
    seen = np.zeros(pages, bool)
    for sequence, count in zip(given["spans"][:, 0], packed, strict=True):
        seen[page_lists[sequence, :count]] = True
    dims = (GROUP, kv_heads, head_dim)
    caches = {}
    for name, page_of in (("k_pages", page_of_keys), ("v_pages", page_of_values)):
        caches[name] = np.full((pages, kv_heads, head_dim, PAGE_BYTES), 0xFF, np.uint8)
        for page in np.flatnonzero(seen):
            x = case.finite(rng, *dims).clip(-LARGEST_HALF, LARGEST_HALF)
            caches[name][page] = page_of(x.astype(np.float16).astype(np.float32))
    for name in ("positions", "cell_positions"):  # the pages' tokens stand before those of cells
        given[name] += np.int32(GROUP * slots - given["cell_positions"].min())
    keys = [keys_of(caches["k_pages"][seen][:2]).reshape(-1, kv_heads, head_dim)]
    cells = [given["lists"][s, b:e] for s, b, e in given["spans"]]
    keys += [rows_of(given["k"][c[:GROUP]], head_dim, "F16") for c in cells[-2:]]
    given["q"] = tamed(given["q"], given["scale"], np.concatenate(keys), case)
    return {
        **given, **caches, "page_lists": page_lists.astype(np.int32).reshape(-1, slots),
        "packed": packed.astype(np.int32),
    }  # fmt: skip


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """attention's: what a page holds is exact, a number of float32. Pages and cells are parts."""
    off, of_scores = np.zeros(expected["out"].shape), gamma(inputs["q"].shape[2] + 2)
    pages = _held(inputs)
    for t, out in enumerate(expected["out"]):
        off[t] = errors(_seen_by(t, inputs, pages), out[None], of_scores, 0.0, parts=2)[0]
    return {"out": off}


def complaint(inputs: Arguments) -> str:
    pages, kv_heads, head_dim, _ = inputs["k_pages"].shape
    if inputs["v_pages"].shape != inputs["k_pages"].shape:
        return "k_pages and v_pages are not alike"
    if head_dim % GROUP or inputs["k"].shape[1] != 2 * kv_heads * head_dim:
        return f"pages have {kv_heads} kv_heads of {head_dim}, cells {inputs['k'].shape[1]} bytes"
    return (
        of_cells.complaint(inputs)
        or out_of_range("page_lists", inputs["page_lists"], pages)
        or out_of_range("packed", inputs["packed"], inputs["page_lists"].shape[1] + 1)
    )


def fit(shape: Shape, format: str | None) -> Shape:
    """As for attention; there is a page for every slot, and heads are whole groups."""
    head_dim, slots = -(-max(1, shape["head_dim"]) // GROUP) * GROUP, max(1, shape["slots"])
    own = {"head_dim": head_dim, "slots": slots, "pages": max(slots, shape["pages"])}
    return of_cells.fit({**shape, **own}, format)


def cost(shape: Shape, format: str | None) -> Cost:
    """Every page and cell read once; each token meets all of them."""
    cells = of_cells.cost(shape, format)
    page = shape["kv_heads"] * shape["head_dim"] * PAGE_BYTES
    products = shape["tokens"] * shape["heads"] * shape["head_dim"] * GROUP
    return Cost(
        cells.bytes + 2 * page * shape["slots"], cells.operations + 4 * products * shape["slots"]
    )


def _plain(**sizes: int) -> Shape:
    return {"sequences": 1, "alibi": 0, "softcapped": 0, "pages": sizes["slots"] + 2, **sizes}


PAGES = f"u8[pages kv_heads head_dim {PAGE_BYTES}]"
SIGNATURE = of_cells.OP.signature.replace(
    " -> ",
    f", k_pages: {PAGES}, v_pages: {PAGES}, page_lists: i32[sequences slots],"
    " packed: i32[tokens] -> ",
)

OP = Op(
    name="attention_kivi",
    reference=attention_kivi,
    signature=SIGNATURE,
    axes={
        "tokens": (1, 2, 3, 5, 8, 9),
        "heads": (1, 2, 3, 4, 6, 8, 9),
        "kv_heads": (1, 2, 3, 4, 5, 8),
        "head_dim": (32, 64, 96, 128, 256),
        "capacity": (1, 2, 15, 33, 129, 257),
        "slots": (1, 2, 3, 7, 8, 9, 17),
        "pages": (1, 2, 5, 12, 19),
        "sequences": (1, 2, 3, 8),
        "alibi": (1, 0),
        "softcapped": (1, 0),
    },
    make=make,
    bound=bound,
    cost=cost,
    formats=("F16",),
    fit=fit,
    corners=(
        # chunks and tiles as attention has them, over pages; a prompt; heads of models
        _plain(tokens=11, heads=6, kv_heads=2, head_dim=64, capacity=300, slots=17, alibi=1),
        _plain(tokens=10, heads=4, kv_heads=1, head_dim=64, capacity=70, slots=9, sequences=2),
        _plain(tokens=5, heads=33, kv_heads=1, head_dim=64, capacity=40, slots=9, softcapped=1),
        _plain(tokens=0, heads=4, kv_heads=2, head_dim=64, capacity=16, slots=1),
        _plain(tokens=513, heads=1, kv_heads=1, head_dim=32, capacity=40, slots=3),
        _plain(tokens=33, heads=32, kv_heads=4, head_dim=64, capacity=160, slots=3),
        _plain(tokens=3, heads=32, kv_heads=32, head_dim=128, capacity=17, slots=2),
        _plain(tokens=2, heads=16, kv_heads=8, head_dim=256, capacity=33, slots=9, softcapped=1),
        # long contexts
        _plain(tokens=3, heads=2, kv_heads=1, head_dim=64, capacity=4100, slots=3),
        _plain(tokens=2, heads=8, kv_heads=1, head_dim=64, capacity=129, slots=520, alibi=1),
        _plain(tokens=1, heads=1, kv_heads=1, head_dim=32, capacity=40, slots=2060),
    ),
    complaint=complaint,
    nan="token",
    largest=LARGEST,
    varying=("tokens", "capacity", "slots", "sequences", "pages"),
    laws=(alone(SIGNATURE, make), contained(SIGNATURE, make), *LAWS),
)
