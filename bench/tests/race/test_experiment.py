"""Contenders at one case, interleaved until a rule says stop: rows of those that took part, and
reasons for the others."""

import math
from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from bench.child import ChildError
from bench.race.experiment import FEW, Contender, Experiment, Rule, Sample, race, timed
from bench.race.ratio import relative_error
from bench.race.results import Measurement

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


THRICE = Rule(least=3, most=3)


def one(name, measure, **options):
    return Contender(Measurement("op", "add", name, tokens=7), measure, **options)


def dying(after):
    """Gives this many samples, then fails."""
    turns: Iterator[int] = count()

    def measure():
        if next(turns) >= after:
            raise ChildError("it died of SIGILL\nand more words")
        return Sample(2.0)

    return measure


def test_rows_are_of_those_who_took_turns():
    """Each has its samples, its number of checks and the race's notes; parts have rows of their
    own, if samples have them."""
    parts = {name: Measurement("op", "add", phase=name, unit="B") for name in ("bytes", "unknown")}
    raced = Experiment({
        "a": one("assay", lambda: Sample(1.0, {"bytes": 5.0}, check=True), parts=parts),
        "b": one("numpy", timed(lambda: 2.0)),
    })  # fmt: skip
    ours, moved, theirs = raced.run(THRICE)
    assert (ours.samples, ours.checked, ours.tokens) == ((1.0,) * 3, 3, 7)
    assert (moved.phase, moved.samples) == ("bytes", (5.0,) * 3)
    assert (theirs.contender, theirs.samples, theirs.checked) == ("numpy", (2.0,) * 3, 0)
    assert {row.rivals for row in (ours, moved, theirs)} == {raced.rivals}
    assert Experiment({}).rivals != raced.rivals


def test_who_fails_is_absent():
    """At the first sample or later, without samples and with the reason; other errors, and those of
    others, end the experiment."""
    raced = Experiment({
        "a": one("assay", timed(lambda: 1.0)),
        "b": one("numpy", dying(2), excused=ChildError),
        "c": Contender(Measurement("op", "add", "torch"), absent="not installed"),
    })  # fmt: skip
    ours, *absent = raced.run(THRICE)
    assert len(ours.samples) == 3
    assert [(row.contender, row.samples, row.note) for row in absent] == [
        ("numpy", (), "it died of SIGILL"), ("torch", (), "not installed")
    ]  # fmt: skip
    with pytest.raises(ChildError):
        Experiment({"a": one("assay", dying(0))}).run(THRICE)


def test_who_is_far_slower_rests():
    """After a few samples, if these take too long; contenders of other work are not compared."""
    rule = Rule(least=9, most=9)
    slow = {
        "a": one("assay", timed(lambda: 1.0)),
        "b": one("numpy", timed(lambda: 4.0), patience=3),
    }
    ours, theirs = Experiment(slow).run(rule)
    assert (len(ours.samples), len(theirs.samples)) == (9, FEW)
    for other in (
        one("numpy", timed(lambda: 4.0), patience=5),
        Contender(Measurement("op", "another"), timed(lambda: 4.0), patience=3),
    ):
        slow = {"a": one("assay", timed(lambda: 1.0)), "b": other}
        assert len(Experiment(slow).run(rule)[1].samples) == 9


def test_what_warms_up_does_not_count():
    """Only the last race's samples are in the row."""
    numbers = count(1)
    raced = Experiment({"a": one("assay", lambda: Sample(float(next(numbers))))})
    assert raced.samplers["a"]() == 1.0
    (row,) = raced.run(THRICE)
    assert row.samples == (2.0, 3.0, 4.0)
    assert not math.isnan(row.median)
