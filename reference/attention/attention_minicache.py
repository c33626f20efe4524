"""Attention over a cache that two blocks share but for the latest tokens: pages of merged keys and
values, and then cells (Liu et al., MiniCache, arXiv 2405.14366)."""

import numpy as np

from reference.attention import attention as of_cells
from reference.attention.attention import LARGEST, attention, errors, rows_of, tamed
from reference.bounds import gamma
from reference.cache.minicache import LARGEST_HALF, restored
from reference.formats.minicache import (
    COSINE,
    GROUP,
    LENGTH_X,
    LENGTH_Y,
    OF_X,
    fitting,
    page_of,
    retained_in,
    rows_of_pages,
)
from reference.laws.attention_minicache import LAWS
from reference.laws.common import alone, contained
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range


def attention_minicache(
    q: Array, k: Array, v: Array, lists: Array, spans: Array, positions: Array,
    cell_positions: Array, slopes: Array, sinks: Array, scale: float, softcap: float,
    k_pages: Array, v_pages: Array, page_lists: Array, packed: Array, upper: int, format: str,
) -> Array:  # fmt: skip
    """attention over what the first packed[t] pages of token t's sequence hold for the lower block,
    or for the `upper` one, 256 tokens each from position 0 on, and over the cells that it sees.

    k_pages, v_pages uint8 [pages, kv_heads, page] (formats/minicache.py): a merged token's vector
    is its length times the direction that both blocks have; page_lists int32 [sequences, slots]:
    pages in the order of their tokens; packed int32 [tokens]. All else is as attention has it
    -> float64 [tokens, heads, head_dim].
    """
    given, out = locals(), np.zeros(q.shape)
    pages = _restored(given)
    for t in range(len(q)):
        out[t] = attention(**_seen_by(t, given, pages))[0]
    return out


def _restored(given: Arguments) -> Array:
    """What all pages hold for a block: keys, values [2, pages, 256, kv_heads, head_dim]."""
    head_dim, upper = given["q"].shape[2], given["upper"]
    of_block = [rows_of_pages(given[f"{name}_pages"], head_dim, upper) for name in "kv"]
    return np.stack([restored(*own).swapaxes(1, 2) for own in of_block])


def _seen_by(t: int, given: Arguments, of_pages: Array) -> Arguments:
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
    pages, size = shape["pages"], shape["page"]
    page_lists = np.stack([rng.permutation(pages)[:slots] for _ in range(shape["sequences"])])
    packed = rng.integers(0, slots + 1, tokens)
    packed[tokens - tokens // 2 :] = slots
    seen = np.zeros(pages, bool)
    for sequence, count in zip(given["spans"][:, 0], packed, strict=True):
        seen[page_lists[sequence, :count]] = True
    caches = {n: np.full((pages, kv_heads, size), 0xFF, np.uint8) for n in ("k_pages", "v_pages")}
    for cache in caches.values():
        for page, g in np.argwhere(np.repeat(seen[:, None], kv_heads, axis=1)):
            cache[page, g] = _page(rng, case, head_dim, size)
    for name in ("positions", "cell_positions"):  # the pages' tokens stand before those of cells
        given[name] += np.int32(GROUP * slots - given["cell_positions"].min())
    upper, cells = case.seed % 2, [given["lists"][s, b:e] for s, b, e in given["spans"]]
    held = restored(*rows_of_pages(caches["k_pages"][seen][:2], head_dim, upper))
    keys = [held.swapaxes(1, 2).reshape(-1, kv_heads, head_dim)]
    keys += [rows_of(given["k"][c[:GROUP]], head_dim, "F16") for c in cells[-2:]]
    given["q"] = tamed(given["q"], given["scale"], np.concatenate(keys), case)
    return {
        **given, **caches, "page_lists": page_lists.astype(np.int32).reshape(-1, slots),
        "packed": packed.astype(np.int32), "upper": upper,
    }  # fmt: skip


def _page(rng: np.random.Generator, case: Case, head_dim: int, size: int) -> Array:
    """A head's page whose merged vectors are as large as retained ones."""
    x, y = (case.finite(rng, GROUP, head_dim).clip(-LARGEST_HALF, LARGEST_HALF) for _ in "xy")
    x, y = x.astype(np.float16), y.astype(np.float16)
    own = np.empty((5, GROUP), np.float32)
    own[COSINE] = rng.standard_normal(GROUP)
    for i, rows in enumerate((x, y)):
        own[LENGTH_X + i] = np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1))
        own[OF_X + i] = 0.55 / np.maximum(own[LENGTH_X + i], 1e-8)
    own[LENGTH_Y] *= rng.choice((1.0, 0.5))
    return page_of(x, y, own, size)


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """attention's, pages and cells being parts. What a page holds is restored with one rounding;
    a kernel may have none, but two for the length by which it multiplies a score, and the weight of
    a value, instead: three at most."""
    off, of_scores = np.zeros(expected["out"].shape), gamma(inputs["q"].shape[2] + 5)
    pages = _restored(inputs)
    for t, out in enumerate(expected["out"]):
        off[t] = errors(_seen_by(t, inputs, pages), out[None], of_scores, gamma(3), parts=2)[0]
    return {"out": off}


def complaint(inputs: Arguments) -> str:
    pages, kv_heads, size = inputs["k_pages"].shape
    head_dim = inputs["q"].shape[2]
    if inputs["v_pages"].shape != inputs["k_pages"].shape:
        return "k_pages and v_pages are not alike"
    if size != fitting(size, head_dim) or inputs["k"].shape[1] != 2 * kv_heads * head_dim:
        return f"pages of {size} bytes hold no {GROUP} tokens with {kv_heads} heads of {head_dim}"
    return (
        of_cells.complaint(inputs)
        or out_of_range("page_lists", inputs["page_lists"], pages)
        or out_of_range("packed", inputs["packed"], inputs["page_lists"].shape[1] + 1)
        or out_of_range("upper", np.array([inputs["upper"]]), 2)
    )


def fit(shape: Shape, format: str | None) -> Shape:
    """As for attention; there is a page for every slot, and a page is as large as it is for some
    number of retained tokens: `page` itself, where it is no more than 256."""
    slots = max(1, shape["slots"])
    own = dict(of_cells.fit({**shape, "slots": slots, "pages": max(slots, shape["pages"])}, format))
    own["page"] = fitting(own["page"], own["head_dim"])
    return own


def cost(shape: Shape, format: str | None) -> Cost:
    """Every page and cell read once, of a page the rows of one block; each token meets all."""
    cells, head_dim = of_cells.cost(shape, format), shape["head_dim"]
    page = shape["page"] - 2 * head_dim * retained_in(shape["page"], head_dim) - 4 * GROUP
    products = shape["tokens"] * shape["heads"] * head_dim * GROUP
    return Cost(
        cells.bytes + 2 * shape["kv_heads"] * page * shape["slots"],
        cells.operations + 4 * products * shape["slots"],
    )


def _plain(**sizes: int) -> Shape:
    return {
        "sequences": 1, "alibi": 0, "softcapped": 0, "page": 13, "pages": sizes["slots"] + 2,
        **sizes,
    }  # fmt: skip


PAGES = "u8[pages kv_heads page]"
SIGNATURE = of_cells.OP.signature.replace(
    " -> ",
    f", k_pages: {PAGES}, v_pages: {PAGES}, page_lists: i32[sequences slots],"
    " packed: i32[tokens], upper: i64 -> ",
)

OP = Op(
    name="attention_minicache",
    reference=attention_minicache,
    signature=SIGNATURE,
    axes={
        "tokens": (1, 2, 3, 5, 8, 9),
        "heads": (1, 2, 3, 4, 6, 8, 9),
        "kv_heads": (1, 2, 3, 4, 5, 8),
        "head_dim": (16, 32, 64, 96, 128, 256),
        "capacity": (1, 2, 15, 33, 129, 257),
        "slots": (1, 2, 3),
        "pages": (1, 2, 5),
        "page": (13, 0, 1, 100, 256),
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
        _plain(tokens=11, heads=6, kv_heads=2, head_dim=64, capacity=300, slots=2, alibi=1),
        _plain(tokens=5, heads=33, kv_heads=1, head_dim=64, capacity=40, slots=2, softcapped=1),
        _plain(tokens=0, heads=4, kv_heads=2, head_dim=64, capacity=16, slots=1),
        _plain(tokens=513, heads=1, kv_heads=1, head_dim=16, capacity=40, slots=1),
        _plain(tokens=33, heads=32, kv_heads=4, head_dim=64, capacity=160, slots=1),
        _plain(tokens=2, heads=16, kv_heads=8, head_dim=256, capacity=33, slots=1, page=256),
        _plain(tokens=2, heads=1, kv_heads=1, head_dim=16, capacity=9, slots=1, pages=1, page=2),
        # long contexts
        _plain(tokens=3, heads=2, kv_heads=1, head_dim=64, capacity=4100, slots=1),
        _plain(tokens=1, heads=1, kv_heads=1, head_dim=16, capacity=40, slots=65),
    ),
    complaint=complaint,
    nan="token",
    largest=LARGEST,
    varying=("tokens", "capacity", "slots", "sequences", "pages"),
    laws=(alone(SIGNATURE, make), contained(SIGNATURE, make), *LAWS),
)
