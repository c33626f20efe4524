"""The linear layer by its transposed weight beside linear, its rows anywhere in memory, its sums in
other orders, and refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.support.depth import DEEP
from conformance.support.here import (
    arguments,
    demand_rows_anywhere,
    each,
    inputs_of,
    resident,
    run,
)
from kernels.call import call
from kernels.shapes import ShapeError
from kernels.table import find
from reference.bounds import U
from reference.op import Arguments, Array
from reference.table import OPS

SIZES = {"tokens": 5, "neurons": 65, "hidden": 256, "active": 30, "held": 40}
FLOATS = ("F32", "F16", "BF16")
LIKES = (*FLOATS, "Q8_0", "Q4_0", "Q4_K", "Q6_K")  # the last decodes as all others do
EACH = each("sparse_axpy", formats=() if DEEP else LIKES)
FEWER = settings(max_examples=max(1, settings.default.max_examples // 4))


def with_rows(inputs: Arguments, active: Array) -> Arguments:
    """The same over these neurons."""
    rows = np.zeros_like(inputs["rows"])
    rows[: len(active)] = active
    return {**inputs, "rows": rows, "count": np.array([len(active)], np.int32)}


def active_of(inputs: Arguments) -> Array:
    return np.asarray(inputs["rows"][: inputs["count"][0]])


def bound(inputs: Arguments) -> Array:
    op = OPS["sparse_axpy"]
    return op.bound(inputs, op.expected(inputs))["out"]


@each("sparse_axpy", formats=FLOATS, target="cpu")
@given(data=st.data())
@FEWER
def test_all_rows_are_linear(kernel, data):
    """Over all neurons it is linear on the transposed weight, bit for bit. On a GPU neurons are
    divided, and elements of a row: orders differ."""
    inputs = resident(data.draw(arguments(kernel)))
    kind = np.dtype(np.uint32 if kernel.format == "F32" else np.uint16)
    weight = inputs["weight"][inputs["slots"]]
    transposed = np.ascontiguousarray(weight.view(kind).T).view(np.uint8)
    linear = find(f"linear/cpu/generic/{kernel.format}")
    everything = with_rows(inputs, np.arange(len(inputs["slots"])))
    assert_array_equal(run(kernel, **everything), run(linear, x=inputs["a"], weight=transposed))


@EACH
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@FEWER
def test_rows_may_lie_anywhere(kernel, data, seed):
    """In any order, each neuron's row of gate, up and down side by side: the same bits."""
    demand_rows_anywhere(kernel, data.draw(arguments(kernel)), seed)


@EACH
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@FEWER
def test_the_neurons_order_matters_to_rounding_alone(kernel, data, seed):
    """Both orders are within the bound of one sum, so they are within two of each other."""
    inputs = data.draw(arguments(kernel))
    order = np.random.default_rng(seed).permutation(len(inputs["rows"]))
    moved = {**inputs, "a": inputs["a"][:, order], "slots": inputs["slots"][order]}
    moved["a"] = np.ascontiguousarray(moved["a"])
    moved = with_rows(moved, np.flatnonzero(np.isin(order, active_of(inputs))))
    off = np.abs(run(kernel, **moved).astype(np.float64) - run(kernel, **inputs))
    assert (off <= 2 * bound(inputs)).all()


@EACH
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@FEWER
def test_two_parts_make_the_whole(kernel, data, seed):
    """Neurons of one place and of the other add up to all, but for the rounding of three sums and
    of the two parts' one."""
    inputs = data.draw(arguments(kernel))
    active = active_of(inputs)
    there = np.random.default_rng(seed).random(len(active)) < 0.5
    whole, cpu, gpu = (with_rows(inputs, r) for r in (active, active[~there], active[there]))
    together = run(kernel, **cpu) + run(kernel, **gpu)
    limit = bound(whole) + bound(cpu) + bound(gpu) + U * np.abs(together)
    off = np.abs(together.astype(np.float64) - run(kernel, **whole))
    assert (off <= limit).all()


@each("sparse_axpy", formats=("F32",))
@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([3, 1], "rows are not neurons in order"),
        ([1, 1], "rows are not neurons in order"),
        ([-1, 1], "rows are not neurons in order"),
        ([1, 65], "rows are not neurons in order"),
    ],
)
def test_rows_of_nothing_are_refused(kernel, rows, told):
    """Rows out of order, twice or outside the weight are told before they are read."""
    inputs = with_rows(inputs_of(kernel, **SIZES), np.array(rows))
    with pytest.raises(ShapeError, match=rf"\Asparse_axpy: {told}"):
        call(kernel, inputs)


@each("sparse_axpy", formats=("F32",))
@pytest.mark.parametrize("count", [-1, 66])
def test_a_count_beyond_the_rows_is_refused(kernel, count):
    """No more neurons than there are, and no fewer than none."""
    inputs = {**inputs_of(kernel, **SIZES), "count": np.array([count], np.int32)}
    with pytest.raises(ShapeError, match=rf"\Asparse_axpy: count is {count}, not 0 to 65"):
        call(kernel, inputs)


@each("sparse_axpy", formats=("F32",))
@pytest.mark.parametrize("slot", [-1, 40])
def test_a_row_that_is_not_there_is_refused(kernel, slot):
    """The slot of an active neuron is told before it is read."""
    inputs = inputs_of(kernel, **SIZES)
    inputs["slots"][inputs["rows"][7]] = slot
    with pytest.raises(ShapeError, match=rf"\Asparse_axpy: slots holds {slot}, not in 0 to 39"):
        call(kernel, inputs)
