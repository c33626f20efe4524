"""What skipping neurons leaves of a model: how the report tells of it."""

import pytest

from bench.report.sparsity import section, ways
from bench.tests.synthetic import run_of, sparsities


def test_the_report_tells_of_every_threshold() -> None:
    """In the order measured: all neurons, those that fire, then the predictors."""
    found = section(run_of(*sparsities()))
    (table,) = found.tables
    assert table.caption == "10.0% of the neurons fire"
    rows = [[cell.text for cell in row] for row in table.rows]
    assert rows[0] == [
        "all neurons", "—", "100.0%", "—", "—", "1.3300 ± 0.0100", "—", "100.00%",
    ]  # fmt: skip
    assert rows[1][:3] == ["those that fire", "—", "10.0%"]
    assert rows[3] == [
        "those predicted", "1", "20.0%", "100.0%", "50.0%", "1.3400 ± 0.0100", "0.010 ± 0.001",
        "99.50%",
    ]  # fmt: skip
    assert [row[1].value for row in table.rows[2:]] == [0, 1, 4]
    assert len(found.plots) == 1


def test_figures_are_kept_by_threshold() -> None:
    found = ways(run_of(*sparsities()))
    assert found["those predicted", "4"]["active share"] == pytest.approx(0.05)


def test_a_run_without_it_says_so() -> None:
    """No table and no plot."""
    found = section(run_of())
    assert not found.tables
    assert not found.plots
