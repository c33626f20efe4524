"""Laws of log-probabilities in 16 bits, and of the KL divergence from them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.kernel.here import each, run
from conformance.kernel.test_samplers import log, logits_of
from kernels.call import call
from kernels.table import find
from reference.bounds import U
from reference.log_probabilities import decoded
from reference.op import Array
from reference.table import OPS

QUANTISE = find("quantise_log_probabilities/cpu/generic")
Coded = tuple[Array, Array]


def coded(logits: Array) -> dict[str, Array]:
    return call(QUANTISE, {"logits": logits})


def log_softmax(logits: Array) -> Array:
    depth = logits.astype(np.float64) - np.float64(logits.max())
    return np.asarray(depth - np.log(np.exp(depth).sum()))


def slack(logits: Array, base: dict[str, Array]) -> float:
    """What a correct kernel may be off by."""
    inputs = {"logits": logits, **base}
    op = OPS["kl_divergence"]
    return float(op.bound(inputs, op.expected(inputs))["out"][0])


@each("quantise_log_probabilities")
@given(logits_of, st.booleans())
def test_what_is_decoded_is_within_half_a_step(kernel, logits, deep):
    """Log-probabilities come back to half a step of at most 16 / 65535 nats; what lies deeper than
    16 below the likeliest comes back as 16 below it."""
    logits = logits * np.float32(4 if deep else 1)
    base = call(kernel, {"logits": logits})
    exact, step = log_softmax(logits), float(base["line"][0])
    error = np.abs(decoded(**base) - np.maximum(exact, exact.max() - 16)).max()
    assert step <= 16 / 65535 * (1 + 2 * U)
    # the code comes of three roundings of up to 65535, a sixty-fourth of a step
    assert error <= step * (1 / 2 + 1 / 64) + 64 * U


@each("quantise_log_probabilities")
@given(logits_of)
def test_codes_keep_the_order(kernel, logits):
    """A likelier token never has a smaller code; the likeliest has the largest there is."""
    codes = call(kernel, {"logits": logits})["codes"][np.argsort(logits)].astype(int)
    assert (np.diff(codes) >= 0).all()
    assert codes[-1] == (65535 if logits.min() < logits.max() else 0)


@each("kl_divergence")
@given(logits_of)
def test_a_distribution_diverges_from_itself_by_its_rounding(kernel, logits):
    """Codes move a log-probability by half a step, so the divergence from itself is no more."""
    base = coded(logits)
    step = float(base["line"][0])
    found = abs(float(run(kernel, logits=logits, **base)[0]))
    assert found <= step * (1 / 2 + 1 / 64) + 64 * U + slack(logits, base)


@each("kl_divergence")
@given(logits_of, st.integers(0, 2**32 - 1), st.sampled_from([0.01, 1.0, 10.0]))
def test_it_is_not_below_the_log_sum_inequality(kernel, logits, seed, width):
    """sum p ln p / q >= S ln S with S = sum p, whatever q: nothing is below zero but by codes."""
    base = coded(logits)
    noise = np.random.default_rng(seed).normal(0, width, len(logits)).astype(np.float32)
    found = float(run(kernel, logits=logits + noise, **base)[0])
    p = decoded(**base)
    whole = np.exp(p[p > -16]).sum()
    assert found >= whole * np.log(whole) - slack(logits + noise, base)


@each("kl_divergence")
def test_it_is_the_textbook_s(kernel):
    """Of 1/2 1/4 1/4 from a uniform third: ln 3 less 3/2 ln 2 nats; the other way it differs."""
    skewed, uniform = log(0.5, 0.25, 0.25), log(1 / 3, 1 / 3, 1 / 3)
    there = float(run(kernel, logits=uniform, **coded(skewed))[0])
    assert there == pytest.approx(np.log(3) - 1.5 * np.log(2), abs=1e-5)
    back = float(run(kernel, logits=skewed, **coded(uniform))[0])
    assert back == pytest.approx((2 * np.log(4 / 3) + np.log(2 / 3)) / 3, abs=1e-5)


@each("kl_divergence")
@given(logits_of, st.integers(-8, 8))
def test_a_shift_of_the_logits_changes_nothing(kernel, logits, shift):
    """Logits on a grid shift without rounding, and then not a bit changes."""
    base = coded(logits)
    moved = logits + np.float32(shift)
    if (moved.astype(np.float64) - shift == logits).all():
        assert_array_equal(run(kernel, logits=moved, **base), run(kernel, logits=logits, **base))


@each("kl_divergence")
def test_tokens_beyond_the_cut_count_for_nothing(kernel):
    """A token that the base gives less than e^-16 may have any logit."""
    base = coded(np.array([0, -1, -17], np.float32))
    sums = [
        float(run(kernel, logits=np.array([0, -1, far], np.float32), **base)[0])
        for far in (-17, -100)
    ]
    assert sums[0] == pytest.approx(sums[1], abs=1e-6)
