"""Laws of the linear layer by its transposed weight, for every weight format."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.conftest import DEEP
from conformance.kernel.here import (
    arguments,
    demand_one_result,
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
from reference.formats import FORMATS
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
def test_no_row_is_zero(kernel):
    """Over no neurons the sum is empty."""
    inputs = inputs_of(kernel, **SIZES)
    assert_array_equal(run(kernel, **with_rows(inputs, np.arange(0))), 0)


@EACH
@given(data=st.data())
@FEWER
def test_other_neurons_are_nothing_to_anyone(kernel, data):
    """NaN in the rows and the factors of neurons that are not listed changes no bit, and which rows
    are said to be theirs neither."""
    inputs = data.draw(arguments(kernel))
    active = active_of(inputs)
    others = np.delete(np.arange(len(inputs["rows"])), active)
    unneeded = np.delete(np.arange(len(inputs["weight"])), inputs["slots"][active])
    weight, a = inputs["weight"].copy(), inputs["a"].copy()
    weight[unneeded], a[:, others] = 0xFF, np.nan
    assert np.isnan(FORMATS[kernel.format].dequantise(weight[unneeded])).all()
    for spoilt in ({**inputs, "weight": weight, "a": a}, resident(inputs)):
        assert_array_equal(run(kernel, **spoilt), run(kernel, **inputs))


@EACH
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@FEWER
def test_rows_may_lie_anywhere(kernel, data, seed):
    """In any order, each neuron's row of gate, up and down side by side: the same bits."""
    demand_rows_anywhere(kernel, data.draw(arguments(kernel)), seed)


@EACH
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@FEWER
def test_a_neuron_that_no_token_wants_is_not_read(kernel, data, seed):
    """Listed neurons whose factors are all zero may hold NaN, and change no bit by being listed."""
    inputs = data.draw(arguments(kernel))
    idle, active = np.random.default_rng(seed).random(len(inputs["rows"])) < 0.5, active_of(inputs)
    weight, a = inputs["weight"].copy(), inputs["a"].copy()
    weight[inputs["slots"][active[idle[active]]]], a[:, idle] = 0xFF, 0
    a[::2, idle] *= -1  # a negative zero is one too
    listed = {**inputs, "weight": weight, "a": a}
    wanted = with_rows(listed, active[~idle[active]])
    assert_array_equal(run(kernel, **listed), run(kernel, **wanted))


@EACH
@given(data=st.data())
@FEWER
def test_a_token_does_not_see_the_others(kernel, data):
    """The first token alone, and all that follow without it, get the bits that they get among all,
    though a neuron that only it wants is then not read for them."""
    inputs = data.draw(arguments(kernel))
    together = run(kernel, **inputs)
    for some in (slice(1), slice(1, None)):
        assert_array_equal(run(kernel, **{**inputs, "a": inputs["a"][some]}), together[some])


@EACH
def test_where_a_kernel_cuts_changes_no_bit(kernel):
    """More tokens than it holds at once, and so many neurons that they are divided: few tokens get
    the bits that they get among many."""
    sizes = {"tokens": 70, "neurons": 1600, "hidden": 256, "active": 90, "held": 90}
    inputs = inputs_of(kernel, **sizes)
    together = run(kernel, **inputs)
    for some in (slice(1), slice(1, 5), slice(5, 70)):
        assert_array_equal(run(kernel, **{**inputs, "a": inputs["a"][some]}), together[some])


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


@each("sparse_axpy", formats=(*FLOATS, "Q8_0", "Q4_0"))
@pytest.mark.parametrize("active", [0, 1, 3, 4, 5, 65])
def test_whole_numbers_are_exact(kernel, active):
    """Sums that float32 can hold come out exactly, in one part or in two."""
    rng = np.random.default_rng(active)
    a = rng.integers(-100, 101, (5, 65)).astype(np.float32)
    w = rng.integers(-7, 8, (65, 96)).astype(np.float32)
    w[:, 1::32] = 127 if kernel.format == "Q8_0" else -8  # so that a block's scale is 1
    weight = FORMATS[kernel.format].quantise(w)
    assert_array_equal(FORMATS[kernel.format].dequantise(weight), w)
    rows = np.sort(rng.permutation(65)[:active])
    every = np.arange(65, dtype=np.int32)
    inputs = with_rows({"a": a, "weight": weight, "rows": every, "slots": every}, rows)
    whole = run(kernel, **inputs)
    assert_array_equal(whole, a[:, rows] @ w[rows].astype(np.float64))
    parts = [run(kernel, **with_rows(inputs, part)) for part in (rows[::2], rows[1::2])]
    assert_array_equal(parts[0] + parts[1], whole)


@each("sparse_axpy", formats=() if DEEP else LIKES, target="cpu")
@given(data=st.data(), threads=st.integers(2, 5))
@FEWER
def test_threads_make_one_result(kernel, data, threads):
    """By any number of threads, the same bits."""
    demand_one_result(kernel, threads, data.draw(arguments(kernel)))


@EACH
def test_rows_beyond_the_count_are_not_looked_at(kernel):
    """Whatever stands there, the same bits."""
    inputs = inputs_of(kernel, **SIZES)
    for beyond in (-1, 64, 2**31 - 1):
        stale = inputs["rows"].copy()
        stale[SIZES["active"] :] = beyond
        assert_array_equal(run(kernel, **{**inputs, "rows": stale}), run(kernel, **inputs))


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
