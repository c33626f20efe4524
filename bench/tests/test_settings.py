"""Rows say what they ran with, so that two set-ups are never taken for one."""

from pathlib import Path

import pytest

from bench.contenders.contender import OURS, Setup
from bench.engine_race import field_of
from bench.engine_tests import EngineTest
from bench.profile import measurements, profile
from bench.results import Measurement
from bench.timing import Rule
from engine import Engine

ONCE = Rule(least=1, most=1)
STEP = EngineTest("tg", generate=1)


def row(model: Path, setup: Setup) -> Measurement:
    with field_of(model, setup, (OURS,)) as field:
        (found,) = field.run(STEP, ONCE)
    return found


def test_only_what_is_unusual_is_told() -> None:
    """Threads stand in a row of their own, and room for tokens changes no speed."""
    assert Setup(2, context=64, sequences=4).settings == ""
    told = Setup(2, context=64, batch=8, kv_format="Q8_0").settings
    assert told == "batch=8,kv_format=Q8_0"
    assert Setup(2, context=64, ram_budget="600MiB").settings == "ram_budget=600MiB"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sparse": "on", "threshold": 0.25}, "sparse=on,blocks=2/2,threshold=0.25"),
        ({"sparse": "on", "threshold": -1.0, "union": True},
         "sparse=on,blocks=2/2,threshold=-1,union"),
        ({"threshold": 0.25}, "sparse=auto,blocks=0/2"),  # too small for skipping to pay
        ({"sparse": "off"}, "sparse=off,blocks=0/2"),
    ],
)  # fmt: skip
def test_a_profile_says_how_it_ran(
    sparse_model: Path, options: dict[str, object], told: str
) -> None:
    """Which blocks skipped neurons, and by which threshold; in the profile and all of its rows."""
    with Engine.load(sparse_model, threads=1, context=32, **options) as engine:
        found = profile(engine, depth=2, rule=ONCE)
    assert found.settings == told
    assert {m.settings for m in measurements(found)} == {told}


def test_a_race_says_how_it_ran(sparse_model: Path) -> None:
    """What the contender's own process found is in its rows, after what holds for everyone; rows of
    other settings are not compared."""
    setup = Setup(1, context=32, kv_format="F32", sparse="on", threshold=0.5)
    sparse, dense = row(sparse_model, setup), row(sparse_model, Setup(1, context=32, sparse="off"))
    assert sparse.settings == "kv_format=F32,sparse=on,blocks=2/2,threshold=0.5"
    assert dense.settings == "sparse=off,blocks=0/2"
    assert sparse.key != dense.key
    assert sparse.settings in sparse.title
