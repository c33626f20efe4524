"""Planted bugs of slerp_weights and merge_blocks."""

from typing import Any

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.cache.minicache import merge_blocks, slerp_weights
from reference.formats.minicache import COSINE, LENGTH_X, LENGTH_Y, OF_X, OF_Y
from reference.op import Array


def straight(**given: Any) -> Array:
    """Between two directions on a straight line, not on the sphere."""
    out = slerp_weights(**given)
    t = given["towards"]
    for s, (first, end) in enumerate(given["due"]):
        places = slice(256 * first, 256 * end)
        for share, of, length in ((1 - t, OF_X, LENGTH_X), (t, OF_Y, LENGTH_Y)):
            lengths = out[s, :, length, places]
            out[s, :, of, places] = np.where(lengths > 0, share / np.maximum(lengths, 1e-30), 0)
    return out


def in_line(*which: int) -> Any:
    """What stands in some lines of each token stands in others."""

    def wrong(**given: Any) -> Array:
        out = slerp_weights(**given)
        for s, (first, end) in enumerate(given["due"]):
            places = slice(256 * first, 256 * end)
            out[s, :, :, places] = out[s][:, list(which), places]
        return out

    return wrong


def weighed(**changes: Any) -> Any:
    """Merging by other weights."""

    def wrong(**given: Any) -> Array:
        own = given["weights"].copy()
        for name, of in changes.items():
            line = {"cosine": COSINE, "of_x": OF_X, "length_y": LENGTH_Y}[name]
            own[:, :, line] = of(own[:, :, line])
        return merge_blocks(**{**given, "weights": own})

    return wrong


def a_place_late(lists: Array) -> Array:
    return np.roll(lists, 1, axis=1)


def all_due(due: Array) -> Array:
    return np.column_stack([0 * due[:, 0], due[:, 1]])


BUGS = (
    *in_python(
        "slerp_weights",
        straight,
        lengths_changed=in_line(COSINE, OF_X, OF_Y, LENGTH_Y, LENGTH_X),
        factors_changed=in_line(COSINE, OF_Y, OF_X, LENGTH_X, LENGTH_Y),
        one_length=in_line(COSINE, OF_X, OF_Y, LENGTH_X, LENGTH_X),
        the_other_way=changed(slerp_weights, towards=lambda t: 1 - t),
        half_way=changed(slerp_weights, towards=0.5),
        a_place_late=changed(slerp_weights, lists=a_place_late),
        all_due=changed(slerp_weights, due=all_due),
        others_cleared=changed(slerp_weights, before=np.zeros_like),
        formats=("F16",),
    ),
    *in_python(
        "merge_blocks",
        narrowest_retained=weighed(cosine=np.negative),
        later_of_equals=weighed(cosine=lambda c: c - 1e-6 * np.arange(c.shape[-1])),
        unweighed=weighed(of_x=np.ones_like),
        length_forgotten=weighed(length_y=np.ones_like),
        a_place_late=changed(merge_blocks, lists=a_place_late),
        all_due=changed(merge_blocks, due=all_due),
        cells_in_order=changed(merge_blocks, lists=lambda own: np.sort(own, axis=1)),
        pages_in_order=changed(merge_blocks, page_lists=lambda own: np.sort(own, axis=1)[:, ::-1]),
        others_cleared=changed(merge_blocks, before=np.zeros_like),
        lower_alone=lambda **given: merge_blocks(**{**given, "y": given["x"]}),
        formats=("F16",),
    ),
)
