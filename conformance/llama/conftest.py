"""The engine over a model that spells."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.support.spelling import Spelling
from engine import Engine


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Spelling(format="Q8_0").write(tmp_path_factory.mktemp("generate") / "small.gguf")


@pytest.fixture(scope="module")
def shared(path: Path) -> Iterator[Engine]:
    with Engine.load(path, threads=2, context=64) as engine:
        yield engine


@pytest.fixture
def engine(shared: Engine) -> Engine:
    shared.reset()
    return shared
