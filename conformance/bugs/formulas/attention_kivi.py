"""Planted bugs of attention_kivi."""

from typing import Any

import numpy as np

from conformance.bugs.bug import in_python
from reference.attention.attention_kivi import attention_kivi
from reference.op import Array


def averaged_apart(**given: Any) -> Array:
    """Pages and cells each have weights that sum to one, and are averaged by their tokens."""
    nothing = given["spans"].copy()
    nothing[:, 2] = nothing[:, 1]
    pages = attention_kivi(**{**given, "spans": nothing})
    cells = attention_kivi(**{**given, "packed": 0 * given["packed"]})
    held = 32 * given["packed"][:, None, None]
    seen = np.diff(given["spans"][:, 1:])[:, :, None]
    return (held * pages + seen * cells) / np.maximum(1, held + seen)


def swapped_halves(**given: Any) -> Array:
    """A page's last sixteen tokens come before the others, for keys only."""
    pages = given["k_pages"].copy()
    kv_heads, head_dim = pages.shape[1:3]
    rows = pages.reshape(len(pages), kv_heads, -1)
    codes = rows[:, :, : 8 * head_dim].reshape(len(pages), kv_heads, -1, 2, 64)
    rows[:, :, : 8 * head_dim] = codes[:, :, :, ::-1].reshape(len(pages), kv_heads, -1)
    return attention_kivi(**{**given, "k_pages": rows.reshape(pages.shape)})


BUGS = in_python("attention_kivi", averaged_apart, swapped_halves, formats=("F16",))
