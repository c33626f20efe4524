"""Planted bugs of penalties."""

import numpy as np

from conformance.bugs.bug import in_c, in_python
from reference.op import Array


def divided(
    logits: Array,
    repeated: Array,
    counts: Array,
    repetition: float,
    frequency: float,
    presence: float,
) -> Array:
    """The repetition penalty as first published, which favours negative logits."""
    x = np.where(repeated > 0, logits / repetition, logits)
    return np.where(counts > 0, x - counts * frequency - presence, x)


IN_C = (
    *in_c("penalties",
        ("counts-of-eight-bits", "count = b->counts[i];", "count = (uint8_t)b->counts[i];"),
        ("counts-of-signed-bytes", "count = b->counts[i];", "count = (int8_t)b->counts[i];"),
        ("counts-up-to-1000", "count = b->counts[i];",
         "count = b->counts[i] > 1000 ? 1000 : b->counts[i];"),
        ("negative-frequency-ignored", "b->frequency - b->presence",
         "fmax(0, b->frequency) - b->presence"),
        ("repetition-below-one-ignored", "x <= 0 ? x * b->repetition : x / b->repetition",
         "b->repetition < 1 ? x : x <= 0 ? x * b->repetition : x / b->repetition"),
        ("token-beyond-65535", "b->repeated[i] > 0", "b->repeated[i] > 0 && i < 65536"),
        ("in-float", "double x = b->logits[i];", "float x = b->logits[i];"),
    ),
)  # fmt: skip

BUGS = (
    *IN_C,
    *in_python("penalties", divided),
)
