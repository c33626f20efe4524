"""Data frames hold the files' contents, one row a sample."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bench.race import frames
from bench.race.results import Measurement, Results, read_folder
from bench.tests.support.synthetic import CONDITIONS, LIMITS

ROWS = (
    Measurement("op", "add", samples=(3e-6, 1e-6, 2e-6), bytes=3e3, operations=1e3, threads=2,
                limit="memory read", limit_seconds=1e-6, cache="cold"),
    Measurement("engine", "tg16", model="m.gguf", samples=(0.5, 0.25), tokens=16, rivals="r"),
    Measurement("engine", "tg16", "llama.cpp", model="m.gguf", rivals="r", note="not installed"),
    Measurement("memory", "load", samples=(3e6, 5e6), unit="B", bytes=1e6, tokens=4),
)  # fmt: skip


@pytest.fixture(name="folder")
def _folder(tmp_path):
    Results(tmp_path, CONDITIONS, LIMITS.to_json()).add(*ROWS)
    return tmp_path


def test_one_row_a_sample(folder):
    """Every sample has a row, in order, with run, commit, device and its measurement's fields;
    absent contenders have one without a value, with the note. Measurements in bytes have no
    seconds."""
    frame, run = frames.load(str(folder)), read_folder(folder)[0][0]
    assert len(frame) == 3 + 2 + 1 + 2
    names = ("run", "commit", "device", "machine")
    about = [run.run, CONDITIONS.commit[:12], CONDITIONS.device, CONDITIONS.machine]
    assert [set(frame[name]) for name in names] == [{one} for one in about]
    assert str(frame.when.dt.tz) == "UTC"
    for row in ROWS:
        found = frame[(frame.test == row.test) & (frame.contender == row.contender)]
        for name in frames.KEYS[5:] + frames.FACTS:
            assert set(found[name]) == {getattr(row, name)}, name
        assert tuple(found.value.dropna()) == row.samples
        assert list(found["sample"]) == list(range(len(row.samples) or 1))
        assert found.seconds.notna().all() == (row.unit == "s" and bool(row.samples))


def test_rates_are_at_the_median(folder):
    """GB/s, GFLOP/s and tokens/s are cost over median; quartiles, mean and sd are NumPy's; other
    units than time have no rate."""
    table = frames.summary(frames.load(folder)).set_index(["test", "contender"])
    add, tg = table.loc[("add", "assay")], table.loc[("tg16", "assay")]
    assert add.gb_per_second == pytest.approx(1.5)
    assert add.gflop_per_second == pytest.approx(0.5)
    assert add.share == pytest.approx(0.5)
    assert (add.low, add.high, add["mean"]) == pytest.approx((1.5e-6, 2.5e-6, 2e-6))
    assert add.sd == pytest.approx(np.std([1e-6, 2e-6, 3e-6], ddof=1))
    assert tg.tokens_per_second == pytest.approx(16 / 0.375)
    assert math.isnan(tg.share)
    absent = table.loc[("tg16", "llama.cpp")]
    assert absent.samples == 0
    assert math.isnan(absent["median"])
    held = table.loc[("load", "assay")]
    assert (held["median"], held.unit, held.samples) == (4e6, "B", 2)
    assert np.isnan([held.tokens_per_second, held.gb_per_second]).all()


def test_runs_do_not_mix(folder):
    """The same measurement in two runs has a row for each; no runs give an empty frame with all its
    columns, and an empty summary."""
    Results(folder, replace(CONDITIONS, commit=""), {}).add(*ROWS)
    assert len(frames.summary(frames.load(folder))) == 2 * len(ROWS)
    frame = frames.of([])
    assert list(frame.columns) == [*frames.KEYS, *frames.FACTS, "sample", "value", "seconds"]
    assert not len(frames.summary(frame))
