"""Contenders at one case: rows of those that took part, and reasons for the others."""

import math
from collections.abc import Iterator
from itertools import count

import pytest

from bench.child import ChildError
from bench.race.experiment import FEW, Contender, Experiment, Rule, Sample, timed
from bench.race.results import Measurement

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
