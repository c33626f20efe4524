"""Laws of the linear layer over active neurons, for every variant and weight format."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.kernel.here import (
    arguments,
    demand_one_result,
    demand_rows_anywhere,
    each,
    inputs_of,
    resident,
    run,
)
from kernels.call import AnyKernel, call
from kernels.shapes import ShapeError
from kernels.table import find_any
from reference.formats import FORMATS
from reference.neuron_masks import active_rows, neuron_split, union_mask
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
@given(data=st.data())
@FEWER
def test_a_token_does_not_see_the_others(kernel, data):
    """Each token alone, with only its own neurons' rows, gets the bits that it gets among all."""
    inputs = data.draw(arguments(kernel))
    together = run(kernel, **inputs)
    for t in range(len(together)):
        alone = masked({**inputs, "x": inputs["x"][t : t + 1]}, inputs["mask"][t : t + 1])
        assert_array_equal(run(kernel, **alone), together[t : t + 1])


@each("sparse_linear")
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@FEWER
def test_outputs_follow_their_neurons(kernel, data, seed):
    """Neurons in another order give the same outputs in that order, bit for bit."""
    inputs = data.draw(arguments(kernel))
    order = np.random.default_rng(seed).permutation(len(inputs["slots"]))
    moved = masked({**inputs, "slots": inputs["slots"][order]}, inputs["mask"][:, order])
    assert_array_equal(run(kernel, **moved), run(kernel, **inputs)[:, order])


@each("sparse_linear")
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@FEWER
def test_rows_may_lie_anywhere(kernel, data, seed):
    """In any order, each neuron's row of gate, up and down side by side: the same bits."""
    demand_rows_anywhere(kernel, data.draw(arguments(kernel)), seed)


@each("sparse_linear")
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
@FEWER
def test_two_parts_make_the_whole(kernel, data, seed):
    """Neurons of one place and of the other, each with zeros elsewhere, add up to all of them, bit
    for bit."""
    inputs = data.draw(arguments(kernel))
    places = np.random.default_rng(seed).integers(0, 2, len(inputs["slots"]))
    cpu, gpu = (
        run(kernel, **masked(inputs, neuron_split(inputs["mask"], places, place)))
        for place in (0, 1)
    )
    assert_array_equal(cpu + gpu, run(kernel, **inputs))


@each("sparse_linear", target="cpu")
@given(data=st.data(), threads=st.integers(2, 5))
@FEWER
def test_threads_make_one_result(kernel, data, threads):
    """By any number of threads, the same bits."""
    demand_one_result(kernel, threads, data.draw(arguments(kernel)))


@each("sparse_linear")
@given(data=st.data())
@FEWER
def test_an_inactive_neuron_is_nothing_to_anyone(kernel, data):
    """Rows of NaN that are of no neuron a token needs change no bit, and which rows are said to be
    those neurons' neither."""
    inputs = data.draw(arguments(kernel))
    weight = inputs["weight"].copy()
    unneeded = np.delete(np.arange(len(weight)), inputs["slots"][inputs["mask"].any(axis=0)])
    weight[unneeded] = 0xFF
    assert np.isnan(FORMATS[kernel.format].dequantise(weight[unneeded])).all()
    for spoilt in ({**inputs, "weight": weight}, resident(inputs)):
        assert_array_equal(run(kernel, **spoilt), run(kernel, **inputs))


@each("sparse_linear")
def test_a_neuron_that_others_need_is_zero_to_a_token(kernel):
    """Not its product with zero: an infinite one stays with the tokens that need it."""
    few = {**SIZES, "active": 65}  # so that no two share a row
    inputs = masked(inputs_of(kernel, **few), np.eye(5, 65, dtype=np.uint8))
    inputs["weight"][inputs["slots"][:5]] = 0xFF
    out = run(kernel, **inputs)
    assert_array_equal(np.isnan(out), inputs["mask"])
    assert_array_equal(out[inputs["mask"] == 0], 0)


@each("sparse_linear")
@pytest.mark.parametrize("beyond", [-1, 0, 64, 2**31 - 1])
@pytest.mark.parametrize("active", [0, 1, 15, 16, 17, 65])
def test_rows_beyond_the_count_are_not_looked_at(kernel, beyond, active):
    """Whatever stands there, the same bits."""
    inputs = inputs_of(kernel, **{**SIZES, "active": active})
    stale = inputs["rows"].copy()
    stale[active:] = beyond
    assert_array_equal(run(kernel, **{**inputs, "rows": stale}), run(kernel, **inputs))


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
