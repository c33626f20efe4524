"""Planted bugs of attention_minicache."""

from typing import Any

import numpy as np

from conformance.bugs.bug import in_python
from reference.attention.attention_minicache import attention_minicache
from reference.formats.minicache import retained_in
from reference.op import Array


def lengths_of(pages: Array, head_dim: int) -> slice:
    """The slice of a head's page with the magnitudes of its tokens."""
    rows = 2 * head_dim * (256 + retained_in(pages.shape[2], head_dim))
    return slice(rows, rows + 8 * 256)


def unit(*names: str) -> Any:
    """Directions without their magnitudes."""

    def wrong(**given: Any) -> Array:
        pages = {name: given[name].copy() for name in names}
        for own in pages.values():
            where = lengths_of(own, given["q"].shape[2])
            ones = np.ones(512, np.float32).view(np.uint8)
            own[:, :, where] = ones
        return attention_minicache(**{**given, **pages})

    return wrong


def averaged_apart(**given: Any) -> Array:
    """Pages and cells each have weights that sum to one, and are averaged by their tokens."""
    nothing = given["spans"].copy()
    nothing[:, 2] = nothing[:, 1]
    pages = attention_minicache(**{**given, "spans": nothing})
    cells = attention_minicache(**{**given, "packed": 0 * given["packed"]})
    held = 256 * given["packed"][:, None, None]
    seen = np.diff(given["spans"][:, 1:])[:, :, None]
    return (held * pages + seen * cells) / np.maximum(1, held + seen)


BUGS = in_python(
    "attention_minicache",
    averaged_apart,
    keys_without_lengths=unit("k_pages"),
    values_without_lengths=unit("v_pages"),
    formats=("F16",),
)
