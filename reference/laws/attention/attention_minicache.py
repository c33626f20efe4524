"""Laws of attention over MiniCache's pages and cells, in addition to those of tokens alone."""

import numpy as np

from reference.formats.minicache import GROUP, LENGTH_X, page_bytes, page_of
from reference.laws.attention.paged import (
    HEAD_DIM,
    KV_HEADS,
    a_page_beyond_is_not_seen,
    as_cells,
    cells_from,
    where_a_page_lies_changes_no_bit,
)
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

TOKENS, SLOTS = 5, 2
BLOCKS = 2  # the lower and the upper


def scene(case: Case, retained: int = 13, tokens: int = TOKENS) -> tuple[Arguments, Array]:
    """Tokens of one sequence over pages and some cells; and the float16 vectors of the pages'
    tokens, keys and values of both blocks [2, 2, slots, 256, kv_heads, head_dim]."""
    rng, t, count = case.rng(), np.arange(tokens), GROUP * SLOTS
    given = cells_from(rng, tokens, count)
    vectors = rng.standard_normal((2, BLOCKS, SLOTS, GROUP, KV_HEADS, HEAD_DIM))
    vectors = vectors.astype(np.float16)
    given |= {
        "spans": np.stack([0 * t, 0 * t, 20 + t % 20], axis=1).astype(np.int32),
        "positions": (count + 19 + t % 20).astype(np.int32),
        "scale": HEAD_DIM**-0.5,
        "page_lists": rng.permutation(SLOTS).astype(np.int32)[None],
        "packed": (SLOTS - t % 2).astype(np.int32),
        "upper": case.seed % BLOCKS,
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
    """If all tokens are retained, a block's pages equal its cells, bit for bit: for few and many
    tokens, with ALiBi."""
    for tokens in (TOKENS, 12):
        given, vectors = scene(case, retained=GROUP, tokens=tokens)
        rows = {
            name: of_blocks[given["upper"]].reshape(GROUP * SLOTS, -1).view(np.uint8)
            for name, of_blocks in zip("kv", vectors, strict=True)
        }
        if found := other_bits(apply(given), apply(as_cells(given, rows, GROUP))):
            return f"{tokens} tokens: {found}"
    return ""


def lengths_are_factors(apply: Apply, case: Case) -> str:
    """Half the magnitudes of merged keys and twice the scale give the same bits; the other block's
    magnitudes change none."""
    given, _ = scene(case, retained=0)
    given["spans"] = np.zeros_like(given["spans"])  # no cells
    changed = {**given, "scale": 2 * given["scale"], "k_pages": given["k_pages"].copy()}
    lengths = changed["k_pages"][:, :, 2 * HEAD_DIM * GROUP :][:, :, : 8 * GROUP]
    own = np.ascontiguousarray(lengths).view(np.float32).reshape(SLOTS, KV_HEADS, BLOCKS, GROUP)
    own[:, :, given["upper"]] /= 2
    own[:, :, 1 - given["upper"]] = np.nan
    lengths[:] = own.view(np.uint8).reshape(lengths.shape)
    return other_bits(apply(changed), apply(given))


def where_a_page_lies(apply: Apply, case: Case) -> str:
    return where_a_page_lies_changes_no_bit(apply, scene(case)[0], case.rng())


def what_is_not_merged_yet(apply: Apply, case: Case) -> str:
    return a_page_beyond_is_not_seen(apply, scene(case)[0])


LAWS = (
    Law("all-retained-is-attention", all_retained_is_attention),
    Law("lengths-are-factors", lengths_are_factors),
    Law("pages-anywhere", where_a_page_lies),
    Law("pages-out-of-sight", what_is_not_merged_yet),
)
