"""Planted bugs of embedding."""

import numpy as np

from conformance.bugs.bug import Bug, Edit, in_python
from reference.embedding import embedding


def element(format: str, name: str, old: str, new: str) -> Bug:
    file = "lattices.cuh" if format[:3] in ("IQ1", "IQ2", "IQ3") else "formats.cuh"
    return Bug("embedding", "cuda", name, Edit(file, old, new), format)


BUGS = (
    *in_python(
        "embedding",
        previous_row=lambda tokens, weight, format: embedding(tokens - 1, weight, format),
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
