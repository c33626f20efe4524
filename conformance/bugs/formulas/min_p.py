"""Planted bugs of min_p."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.op import Array
from reference.samplers.min_p import min_p


def zeros_for_what_is_gone(logits: Array, p: float) -> Array:
    out = min_p(logits, p)
    return np.where(np.isneginf(out), 0, out)


def token_beyond_65535_kept(logits: Array, p: float) -> Array:
    out = min_p(logits, p)
    out[65536:] = logits[65536:]
    return out


BUGS = in_python(
    "min_p",
    zeros_for_what_is_gone,
    token_beyond_65535_kept,
    p_of_at_least_a_hundredth=changed(min_p, p=lambda p: max(p, 0.01)),
)
