"""The curve of decode by share of active neurons, on a small random model."""

from pathlib import Path

import pytest

import bench.sparse_speed as sparse_speed
from bench.timing import Rule
from engine.gguf_file import GGUFFile


def test_bytes_are_those_of_the_tensors(sparse_model: Path) -> None:
    """Each tensor that a step reads counts once; with all firing, predictors come on top."""
    with GGUFFile(sparse_model) as file:
        sizes = sparse_speed.Bytes.of(file)
        total = sum(t.n_bytes for name, t in file.tensors.items() if "token_embd" not in name)
    assert sizes.always + sizes.predictors + sizes.gates + sizes.rest == total
    assert sizes.allowed(1, 1) == (total - sizes.predictors) / total
    assert sizes.allowed(0.1, 0.05) > sizes.allowed(0.2, 0.1) > sizes.allowed(1, 1)


def test_points_have_the_shares_asked_for(
    sparse_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A curve of two points, its table and its drawing."""
    monkeypatch.setattr(sparse_speed, "RULE", Rule(least=3, most=3))
    few, many = sparse_speed.curve(sparse_model, sparse_model, (0.2, 0.6), threads=1)
    assert few.active == pytest.approx(0.2, rel=0.1)
    assert many.active == pytest.approx(0.6, rel=0.1)
    assert 0 < few.firing < few.active
    assert few.allowed > many.allowed
    assert sparse_speed.table([few, many]).row_count == 2
    assert sparse_speed.drawing([few, many], "small").axes
