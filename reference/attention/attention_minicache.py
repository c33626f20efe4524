"""Attention over a cache whose older tokens two adjacent blocks share (Liu et al., MiniCache, arXiv
2405.14366): out = softmax(scale * q [K_pages, K_cells]^T + bias) [V_pages, V_cells]."""

import numpy as np

from reference.attention import attention as of_cells
from reference.attention import paged
from reference.attention.attention import LARGEST
from reference.attention.paged import attend_pages, bound_over_pages
from reference.bounds import gamma
from reference.cache.minicache import LARGEST_HALF, restore_vectors
from reference.formats.minicache import (
    COSINE,
    GROUP,
    LENGTH_X,
    LENGTH_Y,
    OF_X,
    page_of,
    page_size,
    retained_in,
    rows_of_pages,
)
from reference.laws.attention.attention_minicache import LAWS
from reference.laws.common import alone, contained
from reference.op import Arguments, Array, Case, Cost, Op, Shape, out_of_range


def attention_minicache(
    q: Array, k: Array, v: Array, lists: Array, spans: Array, positions: Array,
    cell_positions: Array, slopes: Array, sinks: Array, scale: float, softcap: float,
    k_pages: Array, v_pages: Array, page_lists: Array, packed: Array, upper: int, format: str,
) -> Array:  # fmt: skip
    """attention over the first packed[t] pages of token t's sequence, as the lower block or the
    `upper` one reads them, 256 tokens each from position 0, followed by the cells that it sees.

    k_pages, v_pages uint8 [pages, kv_heads, page] (formats/minicache.py): a merged token's vector
    is the block's length times the shared direction; page_lists int32 [sequences, slots]: pages in
    the order of their tokens; packed int32 [tokens]. Other arguments are attention's
    -> float64 [tokens, heads, head_dim].
    """
    given = locals()
    return attend_pages(given, _held(given))


def _held(given: Arguments) -> Array:
    """The pages decoded for one block: keys and values [2, pages, 256, kv_heads, head_dim]."""
    head_dim, upper = given["q"].shape[2], given["upper"]
    return np.stack([_of_block(given[f"{name}_pages"], head_dim, upper) for name in "kv"])


def _of_block(pages: Array, head_dim: int, upper: int) -> Array:
    """Decode for one block: uint8 [pages, kv_heads, page] -> [pages, 256, kv_heads, head_dim]."""
    return restore_vectors(*rows_of_pages(pages, head_dim, upper)).swapaxes(1, 2)


def make(case: Case) -> Arguments:
    """attention's case with a random number of pages for each token, scattered over the cache;
    pages that no token sees hold NaN."""
    rng = case.rng()
    given, seen = paged.cells_and_lists(case, rng, GROUP)
    kv_heads, head_dim, size = (case.shape[name] for name in ("kv_heads", "head_dim", "page"))
    given["upper"] = case.seed % 2
    for name in ("k_pages", "v_pages"):
        given[name] = np.full((len(seen), kv_heads, size), 0xFF, np.uint8)
        for page, g in np.argwhere(np.repeat(seen[:, None], kv_heads, axis=1)):
            given[name][page, g] = _page(rng, case, head_dim, size)
    keys = _of_block(given["k_pages"][seen][:2], head_dim, given["upper"])
    given["q"] = paged.limit_page_scores(given, keys, case)
    return given


def _page(rng: np.random.Generator, case: Case, head_dim: int, size: int) -> Array:
    """A page of one head, whose merged vectors are as large as the retained ones."""
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
    """attention's bound with pages and cells as parts. Decoding a page rounds once; a kernel may
    instead multiply a score and the weight of a value by the length: three roundings at most."""
    of_scores = gamma(inputs["q"].shape[2] + 5)
    return {"out": bound_over_pages(inputs, _held(inputs), expected["out"], of_scores, gamma(3))}


def complaint(inputs: Arguments) -> str:
    _, kv_heads, size = inputs["k_pages"].shape
    head_dim = inputs["q"].shape[2]
    if size != page_size(size, head_dim) or inputs["k"].shape[1] != 2 * kv_heads * head_dim:
        return f"a page of {size} bytes is not of {GROUP} tokens, {kv_heads} heads of {head_dim}"
    return paged.complaint(inputs) or out_of_range("upper", np.array([inputs["upper"]]), 2)


def fit(shape: Shape, format: str | None) -> Shape:
    """attention's, with a page for every slot; `page` is rounded to the bytes of a page that
    retains a whole number of tokens: `page` tokens, if it is at most 256."""
    own = dict(of_cells.fit(paged.fit_pages(shape), format))
    own["page"] = page_size(own["page"], own["head_dim"])
    return own


def cost(shape: Shape, format: str | None) -> Cost:
    """Cells and, of each page, the rows of one block are read once; each token uses all of them."""
    cells, head_dim = of_cells.cost(shape, format), shape["head_dim"]
    page = shape["page"] - 2 * head_dim * retained_in(shape["page"], head_dim) - 4 * GROUP
    products = shape["tokens"] * shape["heads"] * head_dim * GROUP
    return Cost(
        cells.bytes + 2 * shape["kv_heads"] * page * shape["slots"],
        cells.operations + 4 * products * shape["slots"],
    )


def _plain(**sizes: int) -> Shape:
    usual = {"sequences": 1, "alibi": 0, "softcapped": 0, "page": 13, "pages": sizes["slots"] + 2}
    return {**usual, **sizes}


SIGNATURE = paged.signature("u8[pages kv_heads page]", ", upper: i64")

OP = Op(
    name="attention_minicache",
    reference=attention_minicache,
    signature=SIGNATURE,
    axes=paged.axes(
        head_dim=(16, 32, 64, 96, 128, 256),
        slots=(1, 2, 3),
        pages=(1, 2, 5),
        page=(13, 0, 1, 100, 256),
    ),
    make=make,
    bound=bound,
    cost=cost,
    formats=("F16",),
    fit=fit,
    corners=(
        # attention's chunks and tiles, over pages; a prompt; heads of models
        _plain(
            tokens=11, heads=6, kv_heads=2, head_dim=64, capacity=300, slots=2, alibi=1, page=13
        ),
        _plain(
            tokens=5, heads=33, kv_heads=1, head_dim=64, capacity=40, slots=2, softcapped=1, page=13
        ),
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
