"""Planted bugs of top_p."""

import numpy as np

from conformance.bugs.bug import in_python
from reference.op import Array
from reference.samplers.distribution import dropped, most_likely_first
from reference.samplers.top_p import top_p
from reference.samplers.typical import typical
from reference.softmax import softmax


def without_what_reaches_p(logits: Array, p: float) -> Array:
    order = most_likely_first(logits)
    keep = np.zeros(len(logits), bool)
    keep[order] = np.cumsum(softmax(logits)[order]) < p
    keep[order[0]] = True
    return dropped(logits, keep | (p >= 1))


def at_most_4096(logits: Array, p: float) -> Array:
    """Tokens beyond the likeliest 4,096 are not looked at."""
    out = top_p(logits, p)
    out[most_likely_first(logits)[4096:]] = -np.inf
    return out


BUGS = in_python("top_p", typical, without_what_reaches_p, at_most_4096)
