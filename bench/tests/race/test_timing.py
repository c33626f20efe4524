"""Stopping rules, and interleaving of contenders."""

import math

import numpy as np
import pytest

from bench.race.experiment import Rule, race
from bench.race.ratio import relative_error

RUNS = 400
SKEWED = {  # draws, and the true median
    "exponential tail": (lambda rng, n: 1 + rng.exponential(0.1, n), 1 + 0.1 * math.log(2)),
    "lognormal": (lambda rng, n: rng.lognormal(0, 0.5, n), 1.0),
    "uniform": (lambda rng, n: rng.uniform(1, 2, n), 1.5),
}


@pytest.mark.parametrize("name", SKEWED)
@pytest.mark.parametrize("count", [9, 25, 101])
def test_error_is_one_standard_error(name, count):
    """The reported error covers the true median's error two times in three, for any tail."""
    draw, truth = SKEWED[name]
    rng = np.random.default_rng(count)
    covered = 0
    for _ in range(RUNS):
        samples = draw(rng, count)
        middle = np.median(samples)
        covered += abs(middle - truth) <= relative_error(samples) * middle
    assert 0.58 < covered / RUNS < 0.82


def test_what_the_error_is_of():
    """For fewer than three samples it is unknown, not zero; it is relative; equal samples have
    none, zeros included; one outlier among many changes little."""
    assert {relative_error(few) for few in ((), (1.0,), (1.0, 1.0))} == {math.inf}
    samples = np.random.default_rng(1).lognormal(0, 0.3, 31)
    assert relative_error(samples) == pytest.approx(relative_error(samples * 1e-6))
    assert relative_error([2.0] * 5) == relative_error([0.0] * 5) == 0
    rising = [1 + 0.001 * i for i in range(21)]
    assert relative_error([*rising[:-1], 1000.0]) == relative_error(rising)


def test_when_it_is_enough():
    """Never before `least`, whatever the cost and the scatter; then when it has settled, at the
    time limit, or at enough samples."""
    rule = Rule(least=5, error=0.01, cap_seconds=1, most=31)
    assert not rule.enough([1.0] * 4, elapsed=1e9)
    assert rule.enough([1.0] * 5, elapsed=0)
    wild = list(np.random.default_rng(2).lognormal(0, 1, 30))
    assert not rule.enough(wild, elapsed=0.99)
    assert rule.enough(wild, elapsed=1.0)
    assert rule.enough([*wild, 1.0], elapsed=0)
    assert Rule(error=1.0).enough(wild, elapsed=0)


def test_everyone_begins_in_turn():
    """Each round has everyone once and starts with the next one, so that none always follows the
    same."""
    order = []
    contenders = {name: lambda n=name: order.append(n) or 1.0 for name in "abc"}
    taken = race(contenders, Rule(least=6, most=6))
    assert "".join(order) == 2 * "abcbcacab"
    assert {name: len(s) for name, s in taken.items()} == {"a": 6, "b": 6, "c": 6}


def test_a_race_waits_for_the_slowest_to_settle():
    """All have as many samples as the one with most scatter needs, and the watcher is called; a
    dead one, whose samples are NaN, is not waited for."""
    rng, told = np.random.default_rng(4), []
    contenders = {"calm": lambda: 1.0, "wild": lambda: rng.lognormal(0, 1)}
    taken = race(contenders, Rule(least=3, cap_seconds=60, most=40), told.append)
    assert len(taken["calm"]) == len(taken["wild"]) == 40
    assert told == list(range(1, 41))
    taken = race({"lives": lambda: 1.0, "died": lambda: math.nan}, Rule(least=5, cap_seconds=60))
    assert len(taken["lives"]) == len(taken["died"]) == 5
