"""Laws of softmax that are searched for a counterexample."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from conformance.kernel.here import each, run


@each("softmax")
@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_order_is_kept(kernel, width, seed):
    """What was larger is never less likely."""
    steps = np.random.default_rng(seed).integers(-80, 80, (2, width))
    x = (steps / 8).astype(np.float32)
    for row, probabilities in zip(x, run(kernel, x=x), strict=True):
        assert (np.diff(probabilities[np.argsort(row)]) >= 0).all()
