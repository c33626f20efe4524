"""Fixtures shared by the benchmarks' tests."""

from pathlib import Path

import pytest

from bench.tests.support.small_sparse import write


@pytest.fixture(scope="session")
def sparse_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small sparse model."""
    out = tmp_path_factory.mktemp("sparse") / "small.gguf"
    write(out)
    return out
