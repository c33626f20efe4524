"""The curve of decode by share of active neurons, on a small random model."""

import pytest

from bench.sparse_speed import Bytes, curve, section
from bench.tests.synthetic import rows_of
from bench.timing import Rule
from engine.gguf.file import GGUFFile


def test_bytes_are_those_of_the_tensors(sparse_model):
    """Each tensor that a step reads counts once; with all firing, predictors come on top."""
    with GGUFFile(sparse_model) as file:
        read = Bytes.of(file)
        total = sum(t.n_bytes for name, t in file.tensors.items() if "token_embd" not in name)
    assert read.dense + read.predictors == read.sparse(1, 1) == total
    assert read.sparse(0.1, 0.05) < read.sparse(0.2, 0.1) < read.sparse(1, 1)


def test_points_have_the_shares_asked_for(sparse_model):
    """A curve of two points, its table and its drawing."""
    rule, told = Rule(least=3, most=3), list[str]()
    races = list(curve(sparse_model, sparse_model, (0.2, 0.6), 1, rule, told.append))
    found = section(rows_of(*(row for rows in races for row in rows)))
    (table,) = found.tables
    few, many = (
        {n: c.value for n, c in zip(table.columns, row, strict=True)} for row in table.rows
    )
    assert few["Active"] == pytest.approx(0.2, rel=0.1)
    assert many["Active"] == pytest.approx(0.6, rel=0.1)
    assert 0 < few["Fire"] < few["Active"]
    assert few["Bytes allow"] > many["Bytes allow"]
    assert len(found.plots) == 1
    assert len(told) == 4
