"""Laws of neurons' masks, whatever made them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.kernel.here import arguments, call_by, demand_one_result, each, inputs_of, run
from kernels.call import call
from kernels.shapes import ShapeError
from reference.neuron_masks import OPS

INF, NAN = float("inf"), float("nan")
MASK = np.uint8(np.random.default_rng(0).random((7, 130)) < 0.1)
NEAR = np.nextafter(np.float32(0.3), np.float32([0, 0.3, 1]))  # 0.3 itself lies below the second


@each("threshold_mask")
@pytest.mark.parametrize(
    ("threshold", "active"),
    [
        (0.0, [0, 0, 1, 1, 1, 1, 0]),
        (2.0, [0, 0, 0, 0, 1, 1, 0]),
        (-1.5, [0, 1, 1, 1, 1, 1, 0]),
        (-INF, [1, 1, 1, 1, 1, 1, 0]),
        (INF, [0, 0, 0, 0, 0, 1, 0]),
        (NAN, [0, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_a_logit_at_the_threshold_is_active(kernel, threshold, active):
    """Equal logits count, both zeros are one, and NaN reaches no threshold and none reaches NaN."""
    logits = np.float32([[-INF, -1.5, -0.0, 0.0, 2.0, INF, NAN]])
    assert_array_equal(run(kernel, logits=logits, threshold=threshold), [active])


@each("threshold_mask")
@pytest.mark.parametrize("threshold", [0.3, float(NEAR[1])])
def test_the_threshold_is_not_rounded(kernel, threshold):
    """Logits next to the threshold fall as they do in float64."""
    expected = [float(logit) >= threshold for logit in NEAR]
    assert_array_equal(run(kernel, logits=NEAR[None], threshold=threshold)[0], expected)


@each("threshold_mask")
def test_a_higher_threshold_activates_no_more(kernel):
    """What a threshold leaves active a lower one does too; minus infinity leaves everything."""
    logits = inputs_of(kernel, tokens=7, neurons=130)["logits"]
    masks = [run(kernel, logits=logits, threshold=t) for t in (-INF, -1.0, 0.0, 0.5, 3.0, INF)]
    assert masks[0].all()
    assert not masks[-1].any()
    for lower, higher in pairwise(masks):
        assert (higher <= lower).all()


@each("union_mask")
@given(data=st.data())
def test_a_union_holds_every_token(kernel, data):
    """Every token gets the same mask: a neuron of any of them, and none that no token has."""
    mask = data.draw(arguments(kernel))["mask"]
    out = run(kernel, mask=mask)
    for row in out:
        assert_array_equal(row, mask.any(axis=0))


@each("union_mask")
def test_the_union_of_a_union_is_itself(kernel):
    """Once united, nothing changes any more, nor does the tokens' order matter."""
    out = run(kernel, mask=MASK)
    assert_array_equal(run(kernel, mask=out), out)
    assert_array_equal(run(kernel, mask=np.ascontiguousarray(MASK[::-1])), out)


@each("neuron_split")
@given(data=st.data())
def test_two_parts_make_the_whole(kernel, data):
    """A neuron is in the part where it lives, in one of the two, and active as it was."""
    inputs = data.draw(arguments(kernel))
    mask, places = inputs["mask"], inputs["places"]
    cpu, gpu = (run(kernel, **{**inputs, "place": place}) for place in (0.0, 1.0))
    assert_array_equal(cpu + gpu, mask)
    assert not cpu[:, places == 1].any()
    assert not gpu[:, places == 0].any()


@each("neuron_split")
@pytest.mark.parametrize("place", [2.0, -1.0, 0.5, NAN])
def test_nobody_lives_elsewhere(kernel, place):
    """A place that no neuron has gets none."""
    places = np.resize(np.int32([0, 1]), MASK.shape[1])
    assert not run(kernel, mask=MASK, places=places, place=place).any()


@each("active_rows")
@given(data=st.data(), threads=st.integers(1, 5))
def test_rows_are_the_neurons_of_any_token(kernel, data, threads):
    """All of them, ascending and once each, zeros behind; by any number of threads."""
    mask = data.draw(arguments(kernel))["mask"]
    found = np.flatnonzero(mask.any(axis=0))
    rows, count = call_by(kernel, threads, {"mask": mask}).values()
    assert count[0] == len(found)
    assert_array_equal(rows[: len(found)], found)
    assert_array_equal(rows[len(found) :], 0)


@each("active_rows")
@pytest.mark.parametrize("neurons", [1, 16, 17, 300])
def test_all_and_none_are_found(kernel, neurons):
    """Rows of a full mask are every neuron; of an empty one, or without tokens, none."""
    full = np.ones((3, neurons), np.uint8)
    rows, count = call(kernel, {"mask": full}).values()
    assert_array_equal(rows, np.arange(neurons))
    assert count[0] == neurons
    for empty in (0 * full, full[:0]):
        rows, count = call(kernel, {"mask": empty}).values()
        assert not rows.any()
        assert not count.any()


@each("add_counts")
@given(data=st.data(), cut=st.integers(0, 40))
def test_tokens_may_be_counted_in_turns(kernel, data, cut):
    """Some tokens, then the others, add up to all of them; none add nothing."""
    inputs = data.draw(arguments(kernel))
    first = run(kernel, mask=inputs["mask"][:cut], before=inputs["before"])
    both = run(kernel, mask=inputs["mask"][cut:], before=first)
    assert_array_equal(both, run(kernel, **inputs))
    assert_array_equal(run(kernel, mask=inputs["mask"][:0], before=both), both)


@each("add_counts")
def test_counts_do_not_run_over(kernel):
    """Beyond 32 bits, as a long text's counts are, and one more for each token."""
    before = 2**40 + np.arange(130)
    assert_array_equal(run(kernel, mask=MASK, before=before), before + np.sum(MASK, axis=0))


@each("where_active")
def test_an_active_value_stays_and_another_is_zero(kernel):
    """Whatever it is: NaN and infinity stay where active, and are zero elsewhere, not a product."""
    x = np.resize(np.float32([NAN, INF, -INF, -0.0, 1e-45, -2.5, 3.0]), MASK.shape)
    out = run(kernel, x=x, mask=MASK)
    assert_array_equal(out.view(np.uint32), np.where(MASK, x, 0).view(np.uint32))
    assert np.isnan(out).any()


@each("threshold_mask", "union_mask", "neuron_split", "add_counts", "where_active", target="cpu")
@given(data=st.data(), threads=st.integers(2, 5))
def test_threads_make_one_result(kernel, data, threads):
    """By any number of threads, the same bits."""
    demand_one_result(kernel, threads, data.draw(arguments(kernel)))


@each(*(op.name for op in OPS if op.name != "threshold_mask"))
def test_a_mask_of_other_numbers_is_refused(kernel):
    """A mask is 0 and 1: a 2 would be counted twice."""
    inputs = inputs_of(kernel, tokens=3, neurons=31)
    inputs["mask"] = np.full_like(inputs["mask"], 2)
    with pytest.raises(ShapeError, match=rf"\A{kernel.op}: mask holds more than 0 and 1"):
        call(kernel, inputs)
