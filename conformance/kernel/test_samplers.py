"""Laws of the samplers, each kernel against its definition."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from conformance.kernel.here import each, inputs_of, run
from reference.op import Array
from reference.samplers.distribution import most_likely_first
from reference.softmax import softmax
from reference.table import OPS

GONE = -np.inf
logits_of = st.builds(
    lambda vocab, seed, width, step: (
        np.round(np.random.default_rng(seed).normal(0, width, vocab) / step).astype(np.float32)
        * np.float32(step)
    ),
    st.integers(1, 300),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.5, 3.0, 10.0]),
    st.sampled_from([0.25, 2.0**-12]),
)


def kept(out: Array) -> set[int]:
    return set(np.flatnonzero(np.isfinite(out)).tolist())


def log(*p: float) -> Array:
    """Logits of these probabilities."""
    return np.log(np.array(p)).astype(np.float32)


@each("top_k")
@given(logits_of, st.integers(1, 350))
def test_top_k_keeps_the_k_first_of_a_stable_sort(kernel, logits, k):
    """Exactly min(k, vocab) tokens stay: the largest, and of equals those with the lowest ids."""
    best = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]
    assert kept(run(kernel, logits=logits, k=k)) == set(best)


@each("top_p")
@given(logits_of, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_prefix_that_reaches_p(kernel, logits, p):
    """What stays is a prefix of the sorted tokens, sums to p, and would not without its last."""
    order = most_likely_first(logits)
    stayed = len(kept(run(kernel, logits=logits, p=p)))
    assert kept(run(kernel, logits=logits, p=p)) == set(order[:stayed].tolist())
    sums = np.cumsum(softmax(logits)[order])
    assert sums[stayed - 1] >= p - 1e-5
    assert stayed == 1 or sums[stayed - 2] < p + 1e-5


@each("min_p")
@given(logits_of, st.floats(0.001, 1), st.integers(-8, 8))
def test_min_p_is_free_of_scale(kernel, logits, p, shift):
    """Scaling all probabilities alike, so shifting logits, changes nobody's fate."""
    shifted = (logits + np.float32(shift)).astype(np.float32)
    exact = shifted.astype(np.float64) - shift == logits
    edge = np.abs(logits - logits.max() - math.log(p)) < 1e-5
    same = np.isfinite(run(kernel, logits=shifted, p=p)) == np.isfinite(
        run(kernel, logits=logits, p=p)
    )
    assert (same | edge | ~exact).all()


@each("top_k", "top_p", "typical", "min_p", "top_n_sigma", "xtc", "mirostat_v1", "mirostat_v2")
@pytest.mark.parametrize("seed", range(4))
def test_filters_do_not_see_a_shift(kernel, seed):
    """Adding a constant to all logits leaves the softmax, and so every decision, as it was."""
    inputs = inputs_of(kernel, seed, vocab=1000)
    inputs["logits"] = (np.round(inputs["logits"] * 64) / 64).astype(np.float32)
    before = run(kernel, **inputs)
    inputs["logits"] = inputs["logits"] + np.float32(32)
    assert_array_equal(np.isfinite(run(kernel, **inputs)), np.isfinite(before))


@each("top_k", "top_p", "typical", "min_p", "top_n_sigma", "xtc", "mirostat_v1", "mirostat_v2")
@pytest.mark.parametrize("seed", range(4))
def test_filters_keep_logits_bit_for_bit_and_leave_someone(kernel, seed):
    """A filter's output is the logit or -inf, never all -inf, and nothing comes back to life."""
    inputs = inputs_of(kernel, seed, vocab=1000)
    out = run(kernel, **inputs)
    assert kept(out)
    assert kept(out) <= kept(inputs["logits"])
    assert ((out == inputs["logits"]) | (out == GONE)).all()


@each("typical")
def test_typical_follows_its_definition(kernel):
    """Surprises of .5 .25 .125 .125 are 1 2 3 3 bits, their entropy 1.75: the second is nearest,
    then the first, then the others by id."""
    logits = log(0.5, 0.25, 0.125, 0.125)
    for p, stay in ((0.1, {1}), (0.2, {1}), (0.3, {0, 1}), (0.7, {0, 1}), (0.8, {0, 1, 2})):
        assert kept(run(kernel, logits=logits, p=p)) == stay


@each("top_n_sigma")
def test_top_n_sigma_counts_deviations(kernel):
    """0 0 0 4 deviate by sqrt 3: two deviations below 4 is .54, three -1.2; -inf does not count."""
    logits = np.array([0, 0, 0, 4, GONE], np.float32)
    assert kept(run(kernel, logits=logits, n=2.0)) == {3}
    assert kept(run(kernel, logits=logits, n=3.0)) == {0, 1, 2, 3}


@each("xtc")
def test_xtc_drops_the_top_choices_but_the_least_likely_one(kernel):
    """Of .4 .3 .2 .1 at a threshold of .15 the third stays; a coin that misses changes nothing."""
    inputs: dict[str, Any] = {"logits": log(0.4, 0.3, 0.2, 0.1), "threshold": 0.15}
    assert kept(run(kernel, **inputs, probability=0.5, u=0.49)) == {2, 3}
    assert kept(run(kernel, **inputs, probability=0.5, u=0.5)) == {0, 1, 2, 3}
    tied: dict[str, Any] = {"logits": log(0.3, 0.3, 0.3, 0.1), "threshold": 0.2}
    assert kept(run(kernel, **tied, probability=1.0, u=0.0)) == {2, 3}


@each("temperature")
@given(logits_of)
def test_temperature_one_is_the_identity(kernel, logits):
    """Dividing by one changes no bit."""
    assert_array_equal(run(kernel, logits=logits, temperature=1.0), logits)


@each("dynamic_temperature")
def test_dynamic_temperature_runs_from_low_to_high(kernel):
    """Certainty is divided by temperature - delta, uniformity by temperature + delta."""
    settings = {"temperature": 1.0, "delta": 0.5, "exponent": 1.0}
    sure, uniform = np.array([40, 0, 0], np.float32), np.full(3, 6, np.float32)
    assert_allclose(run(kernel, logits=sure, **settings), sure / 0.5, rtol=1e-5)
    assert_allclose(run(kernel, logits=uniform, **settings), uniform / 1.5, rtol=1e-5)


@each("penalties")
@given(logits_of, st.floats(1.01, 2))
def test_the_repetition_penalty_never_favours(kernel, logits, repetition):
    """Positive logits shrink, negative ones grow more negative, unsaid ones stay."""
    said = (np.arange(len(logits)) % 2).astype(np.int32)
    none = np.zeros_like(said)
    plain = {"repetition": repetition, "frequency": 0.0, "presence": 0.0}
    out = run(kernel, logits=logits, repeated=said, counts=none, **plain)
    assert (out <= logits).all()
    assert (np.sign(out) == np.sign(logits)).all()
    assert_array_equal(out[said == 0], logits[said == 0])


@each("penalties")
def test_frequency_counts_and_presence_does_not(kernel):
    """A token said three times pays frequency thrice and presence once."""
    counts = np.array([0, 1, 3], np.int32)
    settings = {"repetition": 1.0, "frequency": 0.5, "presence": 0.25}
    out = run(kernel, logits=np.ones(3, np.float32), repeated=counts, counts=counts, **settings)
    assert_array_equal(out, np.array([1, 0.25, -0.75], np.float32))


@each("dry")
@pytest.mark.parametrize(
    ("context", "breakers", "penalised"),
    [
        ([1, 2, 3, 1, 2], [], {3: 1}),  # "1 2" again: 3 would make it a repeat of two
        ([1, 2, 3, 4, 1, 2, 3], [], {4: 2}),
        ([5, 1, 2, 3, 6, 1, 2, 3], [], {6: 2}),  # 5 and 6 before "1 2 3" differ
        ([1, 2, 3, 1, 2], [2], {}),  # the match may not hold a breaker
        ([1, 2, 3, 1, 2], [3], {}),  # a breaker is not penalised
        ([1, 1, 1, 1], [], {1: 2}),
        ([1, 2], [], {}),
        ([], [], {}),
    ],
)
def test_dry_examples(kernel, context, breakers, penalised):
    """base^(length - allowed) times the multiplier, for tokens that extend a repeat."""
    out = run(
        kernel,
        logits=np.zeros(8, np.float32),
        context=np.array(context, np.int32),
        breakers=np.array(breakers, np.int32),
        multiplier=1.0,
        base=2.0,
        allowed=2,
    )
    want = {token: -(2.0 ** (times - 1)) for token, times in penalised.items()}
    assert {i: float(v) for i, v in enumerate(out) if v} == want


@each("logit_bias")
def test_a_bias_of_minus_infinity_forbids(kernel):
    """Biases are added where they are named, and -inf removes the token."""
    ids, biases = np.array([3, 0], np.int32), np.array([2.5, GONE], np.float32)
    out = run(kernel, logits=np.ones(4, np.float32), ids=ids, biases=biases)
    assert_array_equal(out, np.array([GONE, 1, 1, 3.5], np.float32))


@each("greedy")
@given(logits_of)
def test_greedy_takes_the_lowest_id_of_the_largest(kernel, logits):
    """argmax, as NumPy breaks ties."""
    assert run(kernel, logits=logits).tolist() == [int(np.argmax(logits))]


@each("greedy")
def test_both_zeros_are_equal(kernel):
    """A negative zero that comes first is the largest."""
    logits = np.array([-1.0, -0.0, 0.0, -2.0], np.float32)
    assert run(kernel, logits=logits).tolist() == [1]


@each("draw")
def test_draws_follow_the_probabilities(kernel):
    """Pearson's chi-square over 20,000 draws is below its 99.9% point (five degrees: 20.5)."""
    p, draws = np.array([0.4, 0.05, 0.0, 0.25, 0.1, 0.15, 0.05]), 20000
    with np.errstate(divide="ignore"):
        logits = np.log(p).astype(np.float32)
    uniform = np.random.default_rng(7).random(draws)
    tokens = [int(run(kernel, logits=logits, u=float(u))[0]) for u in uniform]
    counts = np.bincount(tokens, minlength=7)
    assert counts[2] == 0
    likely = p > 0
    assert np.sum((counts[likely] - draws * p[likely]) ** 2 / (draws * p[likely])) < 20.5


@each("draw")
def test_draw_is_the_inverse_of_the_cumulative_distribution(kernel):
    """u in [c_{i-1}, c_i) gives token i; the ends of [0, 1) give the first and last possible."""
    logits = np.array([GONE, 0, GONE, 0, 0, 0, GONE], np.float32)
    for u, token in ((0.0, 1), (0.24, 1), (0.25, 3), (0.74, 4), (0.75, 5), (1 - 2.0**-53, 5)):
        assert run(kernel, logits=logits, u=u).tolist() == [token]


@each("mirostat_v2")
def test_mirostat_v2_drops_what_surprises_more_than_mu(kernel):
    """Surprises of 1 2 3 3 bits against mu; the most likely token always stays."""
    logits = log(0.5, 0.25, 0.125, 0.125)
    for mu, stay in ((-4.0, {0}), (0.5, {0}), (1.5, {0}), (2.5, {0, 1}), (3.5, {0, 1, 2, 3})):
        assert kept(run(kernel, logits=logits, mu=mu)) == stay


@each("mirostat_v1")
def test_mirostat_v1_keeps_more_for_a_larger_mu(kernel):
    """On a Zipfian vocabulary the number kept grows with mu, from one to all."""
    logits = (-1.1 * np.log(np.arange(1, 1001))).astype(np.float32)
    sizes = [len(kept(run(kernel, logits=logits, mu=mu))) for mu in (-20.0, 4.0, 6.0, 8.0, 40.0)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 1
    assert sizes[-1] == 1000
    assert len(set(sizes)) == 5


@each("log_sum_exp")
@given(logits_of)
def test_log_sum_exp_normalises(kernel, logits):
    """exp(logit - log_sum_exp) sums to one."""
    total = float(run(kernel, logits=logits)[0])
    assert_allclose(np.exp(logits.astype(np.float64) - total).sum(), 1, rtol=1e-6)


@each("log_sum_exp")
def test_removed_tokens_weigh_nothing(kernel):
    """However many there are, and wherever."""
    logits = np.full(9000, GONE, np.float32)
    for place in (0, 300, 8999):
        logits[place] = 2.5
        some = np.isfinite(logits).sum()
        assert run(kernel, logits=logits)[0] == pytest.approx(2.5 + math.log(some), rel=1e-14)


@pytest.mark.parametrize("op", ["top_p", "typical", "xtc", "mirostat_v2", "draw"])
def test_doubt_is_rare(op):
    """In the op's cases, decisions that rounding may turn are less than one in a hundred."""
    doubtful = decisions = 0
    for case in OPS[op].quick_cases():
        inputs = OPS[op].make(case)
        expected = OPS[op].expected(inputs)
        with np.errstate(invalid="ignore"):
            also = OPS[op].also(inputs, expected)
        for name, choices in also.items():
            doubtful += int((choices != expected[name]).sum())
        decisions += case.shape["vocab"]
    assert doubtful < decisions / 100
