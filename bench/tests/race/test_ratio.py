"""A ratio's confidence interval holds the true ratio about as often as its level."""

import numpy as np
import pytest

from bench.race.ratio import Ratio, quotient, ratio

RUNS = 100
TOGETHER = 5  # rounds that a disturbance lasts


def times(rng, count, scale=1.0):
    """Times with a lower limit and a tail."""
    return scale * (1 + rng.exponential(0.05, count))


def in_turns(rng, count, scale):
    """Both sides of `count` interleaved rounds on a machine whose speed drifts by a fifth."""
    drift = np.repeat(rng.lognormal(0, 0.2, -(-count // TOGETHER)), TOGETHER)[:count]
    return times(rng, count, scale) * drift, times(rng, count) * drift


@pytest.mark.parametrize("level", [0.5, 0.95])
@pytest.mark.parametrize("together", [0, 1])
def test_interval_holds_the_truth(together, level):
    """Samples of medians 1.1 apart: the interval holds 1.1 about as often as its level says."""
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(RUNS):
        found = ratio(times(rng, 40, 1.1), times(rng, 40), together=together, level=level)
        held += found.low <= 1.1 <= found.high
    assert level - 0.12 <= held / RUNS <= level + 0.12


def test_interval_holds_the_truth_where_disturbances_last():
    """A disturbance of five rounds counts once if blocks of five rounds are resampled."""
    rng = np.random.default_rng(2)
    held = {1: 0, TOGETHER: 0}
    for _ in range(RUNS):
        a, b = (times(rng, 40) * np.repeat(rng.lognormal(0, 0.1, 8), TOGETHER) for _ in range(2))
        for together in held:
            found = ratio(a, b, together=together)
            held[together] += found.low <= 1 <= found.high
    assert held[TOGETHER] / RUNS >= 0.83  # eight blocks are few
    assert held[1] < held[TOGETHER] - 0.15 * RUNS


def test_a_quotient_holds_the_truth():
    """Two races, 1.2 and 1.5 apart, each on a machine that drifts: the quotient is 0.8."""
    rng = np.random.default_rng(5)
    found = [
        quotient(in_turns(rng, 40, 1.2), in_turns(rng, 40, 1.5), together=TOGETHER)
        for _ in range(RUNS)
    ]
    held = sum(one.low <= 0.8 <= one.high for one in found)
    assert 0.83 <= held / RUNS <= 1.0  # eight blocks a race are few
    assert np.median([one.value for one in found]) == pytest.approx(0.8, rel=0.01)


def test_no_difference_is_seldom_significant():
    """Two equal sides differ significantly at most one time in twenty."""
    rng = np.random.default_rng(3)
    alarms = sum(ratio(times(rng, 40), times(rng, 40)).significant for _ in range(RUNS))
    assert alarms / RUNS <= 0.09


def test_equals_are_equal_and_swapping_inverts():
    """Samples against themselves are exactly 1; b / a is one over a / b, with its interval; a
    higher level has a wider interval; another seed changes little."""
    rng = np.random.default_rng(7)
    a, b = times(rng, 30, 1.3), times(rng, 30)
    assert ratio(a, a, together=1) == Ratio(1.0, 1.0, 1.0)
    assert ratio(a, a).low < 1 < ratio(a, a).high
    one, other = ratio(a, b, together=1), ratio(b, a, together=1)
    assert one.value == pytest.approx(1 / other.value)
    assert one.low == pytest.approx(1 / other.high, rel=1e-3)
    assert one.farthest == pytest.approx(other.farthest, rel=1e-3)
    wider = ratio(a, b, together=1, level=0.99)
    assert wider.low < one.low
    assert wider.high > one.high
    assert ratio(a, b) == ratio(a, b)
    assert ratio(a, b, seed=1).low == pytest.approx(ratio(a, b).low, rel=0.01)


@pytest.mark.parametrize("together", [0, 1, 5, 1000])
@pytest.mark.parametrize("counts", [(1, 1), (1, 7), (3, 2), (6, 5)])
def test_any_number_of_samples(counts, together):
    """For few samples, and blocks longer than all rounds: the value is in the interval."""
    rng = np.random.default_rng(9)
    found = ratio(times(rng, counts[0]), times(rng, counts[1]), together=together)
    assert found.low <= found.value <= found.high


def test_no_samples_are_an_error():
    """A side without samples is an error, not a division; an interval holds its value."""
    for a, b in (([], [1.0]), ([1.0], [])):
        with pytest.raises(ValueError, match="samples on both sides"):
            ratio(a, b)
    with pytest.raises(ValueError, match="lies in its interval"):
        Ratio(1.0, 1.1, 1.2)
