"""Planted bugs of penalties."""

import numpy as np

from conformance.bugs.bug import in_python
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


BUGS = in_python("penalties", divided)
