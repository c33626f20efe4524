"""The linear layer over active neurons beside linear, its rows anywhere in memory, and refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.support.here import (
    arguments,
    demand_rows_anywhere,
    each,
    inputs_of,
    resident,
    run,
)
from kernels.call import AnyKernel, call
from kernels.shapes import ShapeError
from kernels.table import find_any
from reference.neuron_masks import active_rows, union_mask
from reference.op import Arguments, Array

FEWER = settings(max_examples=max(1, settings.default.max_examples // 4))
SIZES = {"tokens": 5, "hidden": 256, "neurons": 65, "active": 30, "held": 40}


def masked(inputs: Arguments, mask: Array) -> Arguments:
    """The same with another mask, and the rows that follow from it."""
    rows, count = active_rows(mask)
    return {**inputs, "mask": np.ascontiguousarray(mask), "rows": rows, "count": count}


def dense(kernel: AnyKernel, inputs: Arguments) -> Array:
    """What linear's kernel of the same variant and format gives; every neuron has a row."""
    linear = find_any(kernel.name.replace("sparse_linear", "linear"))
    assert linear.activations == kernel.activations
    return run(linear, x=inputs["x"], weight=inputs["weight"])[:, inputs["slots"]]


@each("sparse_linear")
@given(data=st.data())
@FEWER
def test_an_active_neuron_has_linears_bits(kernel, data):
    """Whichever others are active for whichever tokens, and all else is zero: so every neuron of a
    full mask, none of an empty one, and a token's own with everybody's. Where there are fewer rows,
    neurons share them."""
    inputs = resident(data.draw(arguments(kernel)))
    mask, product = inputs["mask"], dense(kernel, inputs)
    for other in (mask, union_mask(mask), np.ones_like(mask), np.zeros_like(mask)):
        out = run(kernel, **masked(inputs, other))
        assert_array_equal(out, np.where(other, product, 0))


@each("sparse_linear")
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@FEWER
def test_rows_may_lie_anywhere(kernel, data, seed):
    """In any order, each neuron's row of gate, up and down side by side: the same bits."""
    demand_rows_anywhere(kernel, data.draw(arguments(kernel)), seed)


@each("sparse_linear")
@pytest.mark.parametrize("tokens", [1, 47, 48, 49, 65])
def test_where_a_kernel_cuts_changes_no_bit(kernel, tokens):
    """More tokens than fit a panel, and rows longer than what is brought at once."""
    sizes = {"tokens": tokens, "hidden": 2304, "neurons": 50, "active": 33, "held": 40}
    inputs = resident(inputs_of(kernel, **sizes))
    assert_array_equal(run(kernel, **inputs), np.where(inputs["mask"], dense(kernel, inputs), 0))


@each("sparse_linear")
def test_rows_that_are_not_the_masks_are_refused(kernel):
    """A count or a row that the mask does not give is told before it is read."""
    inputs = inputs_of(kernel, **SIZES)
    shifted = inputs["rows"].copy()
    shifted[0] += 1
    for wrong in ({"count": inputs["count"] - 1}, {"rows": shifted}):
        with pytest.raises(ShapeError, match=r"\Asparse_linear: rows and count are not those"):
            call(kernel, {**inputs, **wrong})


@each("sparse_linear")
@pytest.mark.parametrize("slot", [-1, 40])
def test_a_row_that_is_not_there_is_refused(kernel, slot):
    """The slot of an active neuron is told before it is read."""
    inputs = inputs_of(kernel, **SIZES)
    inputs["slots"][inputs["rows"][7]] = slot
    told = rf"\Asparse_linear: slots holds {slot}, not in 0 to 39"
    with pytest.raises(ShapeError, match=told):
        call(kernel, inputs)
