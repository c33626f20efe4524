"""Laws of accept, recover, exclude and pick, whatever made them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from conformance.kernel.here import arguments, demand_one_result, each, inputs_of, run
from kernels.shapes import ShapeError
from kernels.table import find_any
from reference.op import Array
from reference.verification import LEAST, NEARLY_ONE

SUMS = 2.0**-40  # what rounding makes of sums of up to 1,250 probabilities, with room


def accepted(kernel, p: float, q: float, u: float) -> bool:
    """The decision on token 1 of two."""
    rows = {"p": np.array([[1 - p, p]]), "q": np.array([[1 - q, q]])}
    return bool(run(kernel, **rows, tokens=np.int32([1]), u=np.array([u]))[0])


@each("accept")
@pytest.mark.parametrize("u", [0.0, 0.25, 0.5, NEARLY_ONE])
def test_what_the_target_forbids_is_never_accepted(kernel, u):
    """p = 0 rejects, even where u = 0, which u <= p / q would let pass."""
    assert not accepted(kernel, 0.0, 0.5, u)
    assert not accepted(kernel, 0.0, 0.0, u)
    assert not accepted(kernel, 0.0, LEAST, u)


@each("accept")
@pytest.mark.parametrize("u", [0.0, 0.5, NEARLY_ONE])
def test_a_token_that_could_not_be_drawn_is_no_proposal(kernel, u):
    """q = 0 rejects, and infinity is not a ratio."""
    assert not accepted(kernel, 0.5, 0.0, u)
    assert not accepted(kernel, 1.0, 0.0, u)


@each("accept")
@given(st.floats(2.0**-1021, 1))
def test_equals_are_always_accepted(kernel, p):
    """Where p = q no u below one rejects, nor where p > q; the product's rounding could hide it
    among subnormal numbers alone."""
    assert accepted(kernel, p, p, NEARLY_ONE)
    assert accepted(kernel, p, p / 2, NEARLY_ONE)


@each("accept")
@given(st.floats(0, 1), st.floats(2.0**-1000, 1), st.floats(0, 1, exclude_max=True))
def test_acceptance_is_u_below_the_ratio(kernel, p, q, u):
    """By u q < p, which needs no quotient; a deterministic draft's q is 1, so that u < p."""
    assert accepted(kernel, p, q, u) == (u * q < p)
    assert accepted(kernel, p, 1.0, u) == (u < p)


@each("accept")
def test_u_at_the_ratio_rejects(kernel):
    """p / q = 1/2 accepts the u below it: half of them."""
    below = np.nextafter(0.5, 0)
    assert accepted(kernel, 0.25, 0.5, below)
    assert not accepted(kernel, 0.25, 0.5, 0.5)


@each("recover")
@given(st.data())
def test_accepting_and_recovering_give_the_target(kernel, data):
    """min(p, q) + (1 - sum min(p, q)) recover = p: the whole of modified rejection."""
    inputs = data.draw(arguments(kernel))
    p, q = inputs["p"], inputs["q"]
    drawable = q[np.arange(len(p)), inputs["tokens"]] > 0
    taken = np.minimum(p, q)
    rejected = 1 - taken.sum(axis=-1, keepdims=True)
    total = taken + rejected * run(kernel, **inputs)
    assert_allclose(total[drawable], p[drawable], rtol=0, atol=SUMS)


@each("recover")
@given(st.data())
def test_what_is_recovered_is_a_distribution_over_what_was_underrated(kernel, data):
    """Rows sum to one and stay within p's support; of a token that was drawn and rejected, so that
    p < q, nothing is left."""
    inputs = data.draw(arguments(kernel))
    p, q, tokens = inputs["p"], inputs["q"], inputs["tokens"]
    out, each_row = run(kernel, **inputs), np.arange(len(p))
    assert_allclose(out.sum(axis=-1), 1, rtol=SUMS)
    assert (p[out > 0] > 0).all()
    changed = (out != p).any(axis=-1)
    assert (p[changed] > q[changed])[out[changed] > 0].all()
    overrated = changed & (p[each_row, tokens] < q[each_row, tokens])
    assert (out[each_row, tokens][overrated] == 0).all()


@each("recover")
@given(st.data())
def test_where_nothing_is_left_the_target_stays(kernel, data):
    """p = q, p below q by rounding, and tokens that q cannot give leave p's own bits."""
    inputs = data.draw(arguments(kernel))
    p, tokens = inputs["p"], inputs["tokens"]
    assert_array_equal(run(kernel, p=p, q=p, tokens=tokens), p)
    shaved = np.minimum(np.nextafter(p, 0), p)
    assert_array_equal(run(kernel, p=shaved, q=p, tokens=tokens), shaved)
    impossible = p.copy()
    impossible[np.arange(len(p)), tokens] = 0
    assert_array_equal(run(kernel, p=p, q=impossible, tokens=tokens), p)


@each("recover")
def test_tiny_masses_are_divided_like_large_ones(kernel):
    """What is left may be the smallest numbers there are: it is normalised all the same."""
    p = np.array([[1.0, 3 * LEAST, LEAST], [0.5, 0.5, 2.0**-60]])
    q = np.array([[1.0, 0, 0], [0.5, 0.5, 0]])
    out = run(kernel, p=p, q=q, tokens=np.int32([0, 1]))
    assert_array_equal(out, [[0, 0.75, 0.25], [0, 0, 1]])


@each("recover")
@given(st.data())
def test_a_deterministic_draft_leaves_the_target_without_its_token(kernel, data):
    """With q = 1 at x, recover is exclude, unless x is all that p has."""
    inputs = data.draw(arguments(kernel))
    p, tokens = inputs["p"], inputs["tokens"]
    certain = np.eye(p.shape[1])[tokens]
    without = run(find_any(f"exclude/{kernel.target}/generic"), p=p, tokens=tokens)
    out = run(kernel, p=p, q=certain, tokens=tokens)
    alone = ~without.any(axis=-1)
    assert_array_equal(out[~alone], without[~alone])
    assert_array_equal(out[alone], p[alone])


@each("exclude")
@given(st.data())
def test_proportions_stay_without_the_token(kernel, data):
    """The token is at zero, the others keep their ratios and sum to one, or there are none."""
    inputs = data.draw(arguments(kernel))
    p, tokens = inputs["p"], inputs["tokens"]
    out, each_row = run(kernel, **inputs), np.arange(len(p))
    assert (out[each_row, tokens] == 0).all()
    rest = p.copy()
    rest[each_row, tokens] = 0
    some = rest.any(axis=-1)
    assert not out[~some].any()
    assert_allclose(out[some].sum(axis=-1), 1, rtol=SUMS)
    mass = rest[some].sum(axis=-1, keepdims=True)
    assert_allclose(out[some] * mass, rest[some], rtol=SUMS, atol=2 * LEAST)


@each("pick")
def test_pick_is_the_inverse_of_the_running_sum(kernel):
    """u in [c_{i-1}, c_i) gives token i; the ends of [0, 1) give the first and last possible; rows
    need not sum to one."""
    row = np.array([0, 0.25, 0, 0.25, 0.25, 0.25, 0])
    wanted = {0.0: 1, 0.24: 1, 0.25: 3, 0.74: 4, 0.75: 5, NEARLY_ONE: 5}
    for scale in (1.0, 0.5, 2.0**-40, 2.0**-1060):
        rows = np.repeat(scale * row[None], len(wanted), axis=0)
        assert run(kernel, p=rows, u=np.array(list(wanted))).tolist() == list(wanted.values())


@each("pick")
@given(st.data())
def test_pick_gives_possible_tokens(kernel, data):
    """Whatever u, never a token of p = 0; and a certain one always."""
    inputs = data.draw(arguments(kernel))
    p, tokens = inputs["p"], run(kernel, **inputs)
    assert (p[np.arange(len(p)), tokens] > 0).all()
    certain = np.eye(p.shape[1])[tokens]
    assert_array_equal(run(kernel, p=certain, u=inputs["u"]), tokens)


@each("pick")
@pytest.mark.parametrize("vocab", [1, 63, 64, 65, 1000])
def test_every_token_can_be_picked(kernel, vocab):
    """Of equal ones, u in the middle of each one's share gives each."""
    u = (np.arange(vocab) + 0.5) / vocab
    rows = np.full((vocab, vocab), 1 / vocab)
    assert_array_equal(run(kernel, p=rows, u=u), np.arange(vocab))


@each("accept", "recover", "exclude", "pick")
@given(st.data(), st.integers(2, 5))
def test_threads_make_one_result(kernel, data, threads):
    """By any number of threads, the same bits."""
    demand_one_result(kernel, threads, data.draw(arguments(kernel)))


def spoilt(kernel, value: float, name: str = "p") -> dict[str, Array]:
    inputs = inputs_of(kernel, nodes=2, vocab=31)
    inputs[name] = inputs[name].copy()
    inputs[name][1, 5] = value
    return inputs


@each("accept", "recover", "exclude", "pick")
@pytest.mark.parametrize("value", [-0.1, 1.5, np.inf, np.nan])
def test_what_is_no_probability_is_refused(kernel, value):
    """Negative, above one, infinite or NaN: one plain line names the argument."""
    with pytest.raises(ShapeError, match=rf"\A{kernel.op}: p holds numbers that are no prob"):
        run(kernel, **spoilt(kernel, value))
    if "q" in inputs_of(kernel):
        with pytest.raises(ShapeError, match=rf"\A{kernel.op}: q holds numbers that are no prob"):
            run(kernel, **spoilt(kernel, value, "q"))


@each("accept", "recover", "exclude")
def test_tokens_outside_the_vocabulary_are_refused(kernel):
    """An id that no row has would be read from other memory."""
    inputs = inputs_of(kernel, nodes=2, vocab=31)
    with pytest.raises(ShapeError, match="tokens holds 31, not in 0 to 30"):
        run(kernel, **{**inputs, "tokens": np.int32([3, 31])})


@each("pick")
def test_a_row_of_zeros_is_refused(kernel):
    """There is no token to pick."""
    with pytest.raises(ShapeError, match="pick: row 1 of p is all zeros"):
        run(kernel, p=np.array([[1.0, 0], [0, 0]]), u=np.zeros(2))
