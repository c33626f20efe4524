"""Planted bugs of embedding."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.embedding import embedding

BUGS = (
    *in_python(
        "embedding",
        previous_row=changed(embedding, tokens=lambda tokens: tokens - 1),
        formats=("F32", "Q4_0"),
    ),
    *in_python(
        "embedding",
        scaled_by_width=lambda tokens, weight, format: (
            embedding(tokens, weight, format) * np.sqrt(weight.shape[1])
        ),
        formats=("F16",),
    ),
)
