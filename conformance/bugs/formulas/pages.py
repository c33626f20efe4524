"""Planted bugs of page_extremes, page_scores and choose_pages."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.cache.pages import choose_pages, page_extremes, page_scores
from reference.formats import FORMATS
from reference.op import Array


def swapped(**given: Any) -> Array:
    """The largest stands where the least should."""
    out, before = page_extremes(**given).copy(), given["before"]
    made = (out != before).any(axis=(1, 3, 4), keepdims=True)
    return np.where(made, out[:, :, :, ::-1], out)


def without_the_last_cell(lists: Array, page: int, **rest: Any) -> Array:
    """The last key of each page is another's: that of the cell before."""
    lists = lists.copy()
    if page > 1:
        whole = lists.shape[1] // page * page
        lists[:, page - 1 : whole : page] = lists[:, page - 2 : whole : page]
    return page_extremes(lists=lists, page=page, **rest)


def by_the_means(extremes: Array, format: str, **rest: Any) -> Array:
    """The middle of a page's extremes, not the better of them."""
    layout = FORMATS[format]
    rows = layout.dequantise(extremes.reshape(-1, extremes.shape[-1])).astype(np.float32)
    both = rows.reshape(*extremes.shape[:4], -1)
    with np.errstate(invalid="ignore"):
        both[...] = both.mean(axis=3, keepdims=True)
    means = layout.quantise(both.reshape(len(rows), -1)).reshape(extremes.shape)
    return page_scores(extremes=means, format=format, **rest)


def first_head_for_all(q: Array, before: Array, **rest: Any) -> Array:
    """Of the query heads that choose together one is asked."""
    group = q.shape[1] // before.shape[1]
    return page_scores(q=np.repeat(q[:, ::group], group, axis=1), before=before, **rest)


def later_of_equals(scores: Array, **rest: Any) -> tuple[Array, Array]:
    """Scores a little larger the later a page is, as if rounding did not matter."""
    step = np.arange(scores.shape[2]) * np.float32(2.0**-20)
    return choose_pages(scores=scores + np.abs(scores) * step + step, **rest)


def own_page_scored(scores: Array, spans: Array, chosen: int, **rest: Any) -> tuple[Array, Array]:
    """One page fewer is chosen, since the token's own is thought to be among them."""
    return choose_pages(scores=scores, spans=spans, chosen=max(1, chosen - 1), **rest)


def same_rows(lists: Array, kv_heads: int, **rest: Any) -> tuple[Array, Array]:
    """Cells as they are listed, of no head."""
    out, spans = choose_pages(lists=lists, kv_heads=kv_heads, **rest)
    for row, begin, end in spans:
        out[row, begin:end] //= kv_heads
    return out, spans


BUGS = (
    *in_python(
        "page_extremes",
        swapped,
        without_the_last_cell,
        cells_as_they_lie=changed(
            page_extremes, lists=lambda lists: np.sort(lists, axis=1).astype(np.int32)
        ),
        nothing_is_made=lambda before, **rest: before,
        formats=("F16",),
    ),
    *in_python(
        "page_scores",
        by_the_means,
        first_head_for_all,
        negative=changed(page_scores, q=np.negative),
        formats=("F16",),
    ),
    *in_python(
        "choose_pages",
        later_of_equals,
        own_page_scored,
        same_rows,
        lowest=changed(choose_pages, scores=np.negative),
        one_for_all=changed(
            choose_pages, scores=lambda scores: np.repeat(scores[:, :1], scores.shape[1], axis=1)
        ),
    ),
)
