"""Laws of merging two blocks' keys or values."""

import numpy as np

from reference.formats import FORMATS
from reference.formats.minicache import (
    COSINE,
    GROUP,
    LENGTH_X,
    LENGTH_Y,
    OF_X,
    OF_Y,
    page_bytes,
    rows_of_pages,
)
from reference.laws.common import other_bits
from reference.op import Apply, Arguments, Array, Case, Law

HEADS, HEAD_DIM, PAGES, RETAINED = 2, 32, 2, 13


def vectors(case: Case, x: Array, y: Array) -> Arguments:
    """Two pages of tokens [512, heads, head_dim] of two blocks, in scattered cells."""
    lists = case.rng().permutation(PAGES * GROUP).astype(np.int32)
    places = np.argsort(lists)
    rows = (FORMATS["F16"].quantise(part.reshape(len(lists), -1)[places]) for part in (x, y))
    return {
        **dict(zip("xy", rows, strict=True)),
        "lists": lists[None],
        "due": np.array([[0, PAGES]], np.int32),
        "format": "F16",
    }


def drawn(case: Case) -> Array:
    """Random vectors, float32 [512, heads, head_dim]."""
    return case.rng().standard_normal((PAGES * GROUP, HEADS, HEAD_DIM), np.float32)


def weighed(apply: Apply, case: Case, x: Array, y: Array, towards: float = 0.6) -> Array:
    """slerp_weights' output, [heads, 5, 512]."""
    before = np.zeros((1, HEADS, 5, PAGES * GROUP), np.float32)
    return np.asarray(
        apply({**vectors(case, x, y), "towards": towards, "before": before})["out"][0]
    )


def blocks_change_places(apply: Apply, case: Case) -> str:
    """Swapping the blocks and t with 1 - t swaps their outputs."""
    x, y = drawn(case), drawn(case)[::-1].copy()
    one, other = weighed(apply, case, x, y, 0.25), weighed(apply, case, y, x, 0.75)
    turned = other[:, [COSINE, OF_Y, OF_X, LENGTH_Y, LENGTH_X]]
    return other_bits({"out": one}, {"out": turned})


def lengths_are_kept_apart(apply: Apply, case: Case) -> str:
    """Scaling a block's vectors by a power of two scales its magnitudes, and its factors inversely,
    and changes no other bit."""
    x, y = drawn(case), drawn(case)[::-1].copy()
    want = weighed(apply, case, x, y)
    want[:, LENGTH_Y] *= 4
    want[:, OF_Y] /= 4
    return other_bits({"out": weighed(apply, case, x, 4 * y)}, {"out": want})


def same_directions_are_kept(apply: Apply, case: Case) -> str:
    """If one block's vectors are multiples of the other's, slerp gives their direction."""
    x, rng = drawn(case), case.rng()
    y = x * 2.0 ** rng.integers(-3, 4, x.shape[:2]).astype(np.float32)[..., None]
    own = weighed(apply, case, x, y)[:, :, :, None]
    x, y = (part.astype(np.float16).astype(np.float64).transpose(1, 0, 2) for part in (x, y))
    off = (own[:, OF_X] * x + own[:, OF_Y] * y) * own[:, LENGTH_Y] - y
    worst = np.abs(off).max() / np.abs(y).max()
    return "" if worst < 1e-6 else f"a vector is off by {worst:.3g} of the largest magnitude"


def scene(case: Case) -> Arguments:
    """Two pages that are due, with arbitrary cosines, some of them equal."""
    rng = case.rng()
    own = rng.standard_normal((1, HEADS, 5, PAGES * GROUP), np.float32)
    own[:, :, COSINE] = np.round(own[:, :, COSINE], 1)
    size = page_bytes(HEAD_DIM, RETAINED)
    return {
        **vectors(case, drawn(case), drawn(case)[::-1].copy()),
        "weights": own,
        "page_lists": rng.permutation(PAGES + 1)[None, :PAGES].astype(np.int32),
        "before": rng.integers(0, 256, (PAGES + 1, HEADS, size), np.uint8),
    }


def widest_angles_are_retained(apply: Apply, case: Case) -> str:
    """For each page and head 13 tokens keep their vectors in both blocks, bit for bit, and no other
    token has a lower cosine."""
    given = scene(case)
    pages = apply(given)["out"][given["page_lists"][0]]
    cosines = given["weights"][0, :, COSINE].reshape(HEADS, PAGES, GROUP).transpose(1, 0, 2)
    lowest = np.argsort(cosines, axis=2, kind="stable")[:, :, :RETAINED]
    for upper, name in enumerate("xy"):
        rows, lengths = rows_of_pages(pages, HEAD_DIM, upper)
        cells = given["lists"].reshape(PAGES, GROUP)
        own = FORMATS["F16"].dequantise(given[name])[cells].reshape(PAGES, GROUP, HEADS, -1)
        got = np.take_along_axis(rows * lengths[..., None], lowest[..., None], axis=2)
        want = np.take_along_axis(own.transpose(0, 2, 1, 3), lowest[..., None], axis=2)
        if found := other_bits({"out": got + 0}, {"out": want + 0}):
            return f"retained vectors of {name}: {found}"
    return ""


def pages_in_turns(apply: Apply, case: Case) -> str:
    """Two pages in two calls give the bits of one call; no page gives `before`."""
    given = scene(case)
    out = given["before"]
    for first, end in ((1, 1), (0, 1), (1, PAGES)):
        due = np.array([[first, end]], np.int32)
        out = apply({**given, "due": due, "before": out})["out"]
        if first == end and (found := other_bits({"out": out}, {"out": given["before"]})):
            return f"no page: {found}"
    return other_bits({"out": out}, apply(given))


def where_a_cell_lies_changes_no_bit(apply: Apply, case: Case) -> str:
    """Permuting the cells and their lists changes no bit."""
    given = scene(case)
    moved = case.rng().permutation(PAGES * GROUP)  # new index -> old index
    lists = np.argsort(moved).astype(np.int32)[given["lists"]]
    elsewhere = {"x": given["x"][moved], "y": given["y"][moved], "lists": lists}
    return other_bits(apply({**given, **elsewhere}), apply(given))


WEIGHTS_LAWS = (
    Law("blocks-change-places", blocks_change_places),
    Law("lengths-are-kept-apart", lengths_are_kept_apart),
    Law("same-directions-are-kept", same_directions_are_kept),
)
MERGING_LAWS = (
    Law("widest-angles-are-retained", widest_angles_are_retained),
    Law("pages-in-turns", pages_in_turns),
    Law("cells-anywhere", where_a_cell_lies_changes_no_bit),
)
