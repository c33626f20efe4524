"""Planted bugs of heads that are taken apart and joined."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.heads import heads_apart, heads_joined
from reference.op import Array


def last_not_first(x: Array, size: int) -> tuple[Array, Array]:
    """The last elements of a head."""
    return heads_apart(x[:, :, x.shape[2] - size :], size)


def token_by_token(x: Array, size: int) -> tuple[Array, Array]:
    """Heads of a token side by side."""
    rows = x[:, :, :size].reshape(-1, size)
    return rows, heads_apart(x, size)[1]


def first_not_last(y: Array, x: Array, whole: int) -> Array:
    """The first elements of x behind y."""
    return heads_joined(y, x[:, :, : whole - y.shape[1]], whole)


BUGS = (
    *in_python(
        "heads_apart",
        last_not_first,
        token_by_token,
        begins=lambda x, size: (heads_apart(x, size)[0], np.arange(x.shape[1]) * len(x)),
        heads_turned=changed(heads_apart, x=np.fliplr),
    ),
    *in_python(
        "heads_joined",
        first_not_last,
        rows_as_they_lie=lambda y, x, whole: heads_joined(
            y.reshape(*x.shape[:2], y.shape[1]).transpose(1, 0, 2).reshape(y.shape), x, whole
        ),
        of_the_first_token=changed(heads_joined, x=lambda x: np.broadcast_to(x[:1], x.shape)),
        without_what_follows=changed(heads_joined, x=np.zeros_like),
    ),
)
