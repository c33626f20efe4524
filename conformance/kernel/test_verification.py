"""Inputs that accept, recover, exclude and pick refuse; their properties are in
reference/laws/verification.py."""

import numpy as np
import pytest

from conformance.support.machine_kernels import each, inputs_of, run
from kernels.shapes import ShapeError
from reference.op import Array


def damaged(kernel, value: float, name: str = "p") -> dict[str, Array]:
    inputs = inputs_of(kernel, nodes=2, vocab=31)
    inputs[name] = inputs[name].copy()
    inputs[name][1, 5] = value
    return inputs


@each("accept", "recover", "exclude", "pick")
@pytest.mark.parametrize("value", [-0.1, 1.5, np.inf, np.nan])
def test_invalid_probabilities_are_refused(kernel, value):
    """Negative, above one, infinite or NaN: one plain line names the argument."""
    with pytest.raises(ShapeError, match=rf"\A{kernel.op}: p holds numbers that are not prob"):
        run(kernel, **damaged(kernel, value))
    if "q" in inputs_of(kernel):
        with pytest.raises(ShapeError, match=rf"\A{kernel.op}: q holds numbers that are not prob"):
            run(kernel, **damaged(kernel, value, "q"))


@each("accept", "recover", "exclude")
def test_tokens_outside_the_vocabulary_are_refused(kernel):
    """Such an id would read other memory."""
    inputs = inputs_of(kernel, nodes=2, vocab=31)
    with pytest.raises(ShapeError, match="tokens holds 31, not in 0 to 30"):
        run(kernel, **{**inputs, "tokens": np.int32([3, 31])})


@each("pick")
def test_a_row_of_zeros_is_refused(kernel):
    """No token can be picked."""
    with pytest.raises(ShapeError, match="pick: row 1 of p is all zeros"):
        run(kernel, p=np.array([[1.0, 0], [0, 0]]), u=np.zeros(2))
