"""Tiles of linear against one another: every width that fits is timed, and gives what it should."""

import pytest

from bench import crossover
from bench.crossover import table
from bench.op_run import Lab
from bench.tests.synthetic import VAST
from bench.timing import Rule
from kernels.cpu.runtime.team import Team


@pytest.mark.parametrize("format", ["F16", "Q4_0"])
def test_each_width_that_fits_is_timed(format, monkeypatch):
    monkeypatch.setattr(crossover, "TOKENS", (1, 2))
    monkeypatch.setattr(crossover, "SHAPE", {"hidden": 64, "out": 48})
    monkeypatch.setattr(crossover, "RULE", Rule(least=2, most=2))
    told = []
    with Team(2) as team:
        found = crossover.crossover(format, Lab(team, VAST), lambda: told.append(1))
    assert found.notna().to_numpy().tolist() == [[True, False], [True, True]]
    assert found.stack().dropna().between(0, 1, inclusive="neither").all()
    assert len(told) == 2
    assert table(format, found).row_count == 2
