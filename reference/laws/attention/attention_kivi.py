"""Laws of attention over KIVI's pages and cells, in addition to those of tokens alone."""

import numpy as np

from reference.formats import FORMATS
from reference.formats.kivi import GROUP, page_of_keys, page_of_values
from reference.laws.attention.paged import (
    HEAD_DIM,
    KV_HEADS,
    a_page_beyond_is_not_seen,
    as_cells,
    cells_from,
    where_a_page_lies_changes_no_bit,
)
from reference.op import Apply, Arguments, Array, Case, Law

TOKENS, SLOTS = 5, 11


def scene(case: Case) -> Arguments:
    """Tokens of one sequence over pages of four-level numbers, exact in two bits, and some
    cells."""
    rng, tokens = case.rng(), np.arange(TOKENS)
    keys, values = levels(rng), levels(rng)
    return {
        **cells_from(rng, TOKENS, GROUP * SLOTS),
        "spans": np.stack([0 * tokens, tokens, 20 + tokens], axis=1).astype(np.int32),
        "positions": (GROUP * SLOTS + 20 + tokens).astype(np.int32),
        "scale": HEAD_DIM**-0.5 / 4,
        "k_pages": np.stack([page_of_keys(x) for x in keys]),
        "v_pages": np.stack([page_of_values(x) for x in values]),
        "page_lists": rng.permutation(SLOTS).astype(np.int32)[None],
        "packed": (SLOTS - tokens % 3).astype(np.int32),
    }


def levels(rng: np.random.Generator) -> Array:
    """float32 [pages, 32, kv_heads, head_dim]: integers from -1 to 2, both ends in each group of
    tokens and of channels."""
    x = rng.integers(-1, 3, (SLOTS, GROUP, KV_HEADS, HEAD_DIM)).astype(np.float32)
    eye = np.arange(GROUP)
    for channel in range(0, HEAD_DIM, GROUP):
        x[:, eye, :, channel + eye] = -1
        x[:, eye, :, channel + (eye + 1) % GROUP] = 2
    return x


def pages_are_cells(apply: Apply, case: Case) -> str:
    """Tokens that are exact in two bits have the same weights in pages as in cells, with ALiBi."""
    given, rng = scene(case), case.rng()
    numbers = [levels(rng) for _ in "kv"]
    for name, x, page_of in zip("kv", numbers, (page_of_keys, page_of_values), strict=True):
        given[f"{name}_pages"] = np.stack([page_of(page) for page in x])
    order = given["page_lists"][0]
    rows = {
        name: FORMATS["F16"].quantise(x[order].reshape(GROUP * SLOTS, -1))
        for name, x in zip("kv", numbers, strict=True)
    }
    got, want = apply(given)["out"], apply(as_cells(given, rows, GROUP))["out"]
    if np.allclose(got, want, rtol=1e-4, atol=1e-4):
        return ""
    return f"pages give {np.abs(got - want).max():.3g} off from cells of the same numbers"


def where_a_page_lies(apply: Apply, case: Case) -> str:
    return where_a_page_lies_changes_no_bit(apply, scene(case), case.rng())


def what_is_not_packed_yet(apply: Apply, case: Case) -> str:
    return a_page_beyond_is_not_seen(apply, scene(case))


LAWS = (
    Law("pages-are-cells", pages_are_cells),
    Law("pages-anywhere", where_a_page_lies),
    Law("pages-out-of-sight", what_is_not_packed_yet),
)
