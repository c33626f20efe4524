"""Planted bugs of top_k."""

from conformance.bugs.bug import changed, in_python
from reference.op import Array
from reference.samplers.top_k import top_k


def of_the_first_65536(logits: Array, k: int) -> Array:
    out = logits.copy()
    out[:65536] = top_k(logits[:65536], k)
    return out


BUGS = in_python(
    "top_k",
    of_the_first_65536,
    last_of_ties=lambda logits, k: top_k(logits[::-1], k)[::-1],
    one_more=changed(top_k, k=lambda k: k + 1),
    at_most_4096=changed(top_k, k=lambda k: min(k, 4096)),
)
