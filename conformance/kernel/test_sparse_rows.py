"""Linear layers over active neurons: compared with linear, with rows anywhere in memory, in other
orders, and refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.support.depth import DEEP
from conformance.support.machine_kernels import (
    arguments,
    assert_rows_anywhere,
    each,
    inputs_of,
    resident,
    run,
)
from kernels.call import AnyKernel, call
from kernels.shapes import ShapeError
from kernels.table import find, find_any
from reference.op import Arguments, Array
from reference.sparse.neuron_masks import OPS as MASKS
from reference.sparse.neuron_masks import active_rows, union_mask

SIZES = {"tokens": 5, "hidden": 256, "neurons": 65, "active": 30, "held": 40}
FLOATS = ("F32", "F16", "BF16")
LIKES = (*FLOATS, "Q8_0", "Q4_0", "Q4_K", "Q6_K")  # the last decodes as all others do
FEWER = settings(max_examples=max(1, settings.default.max_examples // 4))


@each("sparse_linear", "sparse_axpy", formats=() if DEEP else LIKES)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@FEWER
def test_rows_anywhere_in_memory_give_the_same_bits(kernel, data, seed):
    """Rows in any order, or with gate, up and down adjacent, give the same bits."""
    assert_rows_anywhere(kernel, data.draw(arguments(kernel)), seed)


@each("sparse_linear", "sparse_axpy")
@pytest.mark.parametrize("slot", [-1, 40])
def test_invalid_slots_are_refused(kernel, slot):
    """An active neuron's invalid slot is reported before it is read."""
    inputs = inputs_of(kernel, **SIZES)
    inputs["slots"][inputs["rows"][7]] = slot
    with pytest.raises(ShapeError, match=rf"\A{kernel.op}: slots holds {slot}, not in 0 to 39"):
        call(kernel, inputs)


def with_mask(inputs: Arguments, mask: Array) -> Arguments:
    """The same with another mask, and its rows."""
    rows, count = active_rows(mask)
    return {**inputs, "mask": np.ascontiguousarray(mask), "rows": rows, "count": count}


def dense(kernel: AnyKernel, inputs: Arguments) -> Array:
    """The output of linear's kernel of the same variant and format; every neuron has a row."""
    linear = find_any(kernel.name.replace("sparse_linear", "linear"))
    assert linear.activations == kernel.activations
    return run(linear, x=inputs["x"], weight=inputs["weight"])[:, inputs["slots"]]


@each("sparse_linear")
@given(data=st.data())
@FEWER
def test_active_neurons_have_linears_bits(kernel, data):
    """For any mask of other neurons and tokens, and all else is zero: so every neuron of a full
    mask, none of an empty one, and a token's own with all tokens'. With fewer rows neurons share
    them."""
    inputs = resident(data.draw(arguments(kernel)))
    mask, product = inputs["mask"], dense(kernel, inputs)
    for other in (mask, union_mask(mask), np.ones_like(mask), np.zeros_like(mask)):
        out = run(kernel, **with_mask(inputs, other))
        assert_array_equal(out, np.where(other, product, 0))


@each("sparse_linear")
def test_rows_that_differ_from_the_mask_are_refused(kernel):
    """A count or a row that is not the mask's is reported before it is read."""
    inputs = inputs_of(kernel, **SIZES)
    shifted = inputs["rows"].copy()
    shifted[0] += 1
    for wrong in ({"count": inputs["count"] - 1}, {"rows": shifted}):
        with pytest.raises(ShapeError, match=r"\Asparse_linear: rows and count are not those"):
            call(kernel, {**inputs, **wrong})


def with_rows(inputs: Arguments, active: Array) -> Arguments:
    """The same for these neurons."""
    rows = np.zeros_like(inputs["rows"])
    rows[: len(active)] = active
    return {**inputs, "rows": rows, "count": np.array([len(active)], np.int32)}


def active_of(inputs: Arguments) -> Array:
    return np.asarray(inputs["rows"][: inputs["count"][0]])


@each("sparse_axpy", formats=FLOATS, target="cpu")
@given(data=st.data())
@FEWER
def test_axpy_over_all_neurons_has_linears_bits(kernel, data):
    """Over all neurons it is linear on the transposed weight, bit for bit. On a GPU neurons are
    divided, and elements of a row: orders differ."""
    inputs = resident(data.draw(arguments(kernel)))
    kind = np.dtype(np.uint32 if kernel.format == "F32" else np.uint16)
    weight = inputs["weight"][inputs["slots"]]
    transposed = np.ascontiguousarray(weight.view(kind).T).view(np.uint8)
    linear = find(f"linear/cpu/generic/{kernel.format}")
    everything = with_rows(inputs, np.arange(len(inputs["slots"])))
    assert_array_equal(run(kernel, **everything), run(linear, x=inputs["a"], weight=transposed))


@each("sparse_axpy", formats=("F32",))
@pytest.mark.parametrize("rows", [[3, 1], [1, 1], [-1, 1], [1, 65]], ids=str)
def test_invalid_row_lists_are_refused(kernel, rows):
    """Unsorted, repeated or out-of-range rows are reported before they are read."""
    inputs = with_rows(inputs_of(kernel, **SIZES), np.array(rows))
    with pytest.raises(ShapeError, match=r"\Asparse_axpy: rows are not ascending neurons"):
        call(kernel, inputs)


@each("sparse_axpy", formats=("F32",))
@pytest.mark.parametrize("count", [-1, 66])
def test_a_count_beyond_the_rows_is_refused(kernel, count):
    """A count is at most the number of neurons, and not negative."""
    inputs = {**inputs_of(kernel, **SIZES), "count": np.array([count], np.int32)}
    with pytest.raises(ShapeError, match=rf"\Asparse_axpy: count is {count}, not 0 to 65"):
        call(kernel, inputs)


@each(*(op.name for op in MASKS if op.name != "threshold_mask"))
def test_masks_must_be_0_and_1(kernel):
    """A mask is 0 and 1: a 2 would be counted twice."""
    inputs = inputs_of(kernel, tokens=3, neurons=31)
    inputs["mask"] = np.full_like(inputs["mask"], 2)
    with pytest.raises(ShapeError, match=rf"\A{kernel.op}: mask holds more than 0 and 1"):
        call(kernel, inputs)
