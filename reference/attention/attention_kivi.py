"""Attention over a KV cache whose older tokens are in two bits (Liu et al., KIVI, arXiv
2402.02750): out = softmax(scale * q [K_pages, K_cells]^T + bias) [V_pages, V_cells]."""

import numpy as np

from reference.attention import attention as of_cells
from reference.attention import paged
from reference.attention.attention import LARGEST
from reference.attention.paged import attend_pages, bound_over_pages
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
from reference.laws.attention.attention_kivi import LAWS
from reference.laws.common import alone, contained
from reference.op import Arguments, Array, Case, Cost, Op, Shape


def attention_kivi(
    q: Array, k: Array, v: Array, lists: Array, spans: Array, positions: Array,
    cell_positions: Array, slopes: Array, sinks: Array, scale: float, softcap: float,
    k_pages: Array, v_pages: Array, page_lists: Array, packed: Array, format: str,
) -> Array:  # fmt: skip
    """attention over the first packed[t] pages of token t's sequence, 32 tokens each from position
    0, followed by the cells that it sees.

    k_pages, v_pages uint8 [pages, kv_heads, head_dim, 11] (formats/kivi.py); page_lists int32
    [sequences, slots]: pages in the order of their tokens; packed int32 [tokens]. Other arguments
    are attention's -> float64 [tokens, heads, head_dim].
    """
    given = locals()
    return attend_pages(given, _held(given))


def _held(given: Arguments) -> Array:
    """The decoded pages: keys and values, float32 [2, pages, 32, kv_heads, head_dim]."""
    return np.stack([keys_of(given["k_pages"]), values_of(given["v_pages"])])


def make(case: Case) -> Arguments:
    """attention's case with a random number of pages for each token, scattered over the cache;
    pages that no token sees hold NaN."""
    rng = case.rng()
    given, seen = paged.cells_and_lists(case, rng, GROUP)
    kv_heads, head_dim = case.shape["kv_heads"], case.shape["head_dim"]
    for name, page_of in (("k_pages", page_of_keys), ("v_pages", page_of_values)):
        given[name] = np.full((len(seen), kv_heads, head_dim, PAGE_BYTES), 0xFF, np.uint8)
        for page in np.flatnonzero(seen):
            x = case.finite(rng, GROUP, kv_heads, head_dim).clip(-LARGEST_HALF, LARGEST_HALF)
            given[name][page] = page_of(x.astype(np.float16).astype(np.float32))
    given["q"] = paged.limit_page_scores(given, keys_of(given["k_pages"][seen][:2]), case)
    return given


def bound(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    """attention's bound: decoded pages are exact in float32. Pages and cells are parts."""
    of_scores = gamma(inputs["q"].shape[2] + 2)
    return {"out": bound_over_pages(inputs, _held(inputs), expected["out"], of_scores, 0.0)}


def complaint(inputs: Arguments) -> str:
    _, kv_heads, head_dim, _ = inputs["k_pages"].shape
    if head_dim % GROUP or inputs["k"].shape[1] != 2 * kv_heads * head_dim:
        return f"pages have {kv_heads} kv_heads of {head_dim}, cells {inputs['k'].shape[1]} bytes"
    return paged.complaint(inputs)


def fit(shape: Shape, format: str | None) -> Shape:
    """attention's, with a page for every slot and head_dim a multiple of the group size."""
    head_dim = -(-max(1, shape["head_dim"]) // GROUP) * GROUP
    return of_cells.fit({**paged.fit_pages(shape), "head_dim": head_dim}, format)


def cost(shape: Shape, format: str | None) -> Cost:
    """Every page and cell is read once; each token's query is multiplied by all of them."""
    cells = of_cells.cost(shape, format)
    page = shape["kv_heads"] * shape["head_dim"] * PAGE_BYTES
    products = shape["tokens"] * shape["heads"] * shape["head_dim"] * GROUP
    return Cost(
        cells.bytes + 2 * page * shape["slots"], cells.operations + 4 * products * shape["slots"]
    )


def _plain(**sizes: int) -> Shape:
    return {"sequences": 1, "alibi": 0, "softcapped": 0, "pages": sizes["slots"] + 2, **sizes}


SIGNATURE = paged.signature(f"u8[pages kv_heads head_dim {PAGE_BYTES}]")

OP = Op(
    name="attention_kivi",
    reference=attention_kivi,
    signature=SIGNATURE,
    axes=paged.axes(
        head_dim=(32, 64, 96, 128, 256), slots=(1, 2, 3, 7, 8, 9, 17), pages=(1, 2, 5, 12, 19)
    ),
    make=make,
    bound=bound,
    cost=cost,
    formats=("F16",),
    fit=fit,
    corners=(
        # attention's chunks and tiles, over pages; a prompt; heads of models
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
