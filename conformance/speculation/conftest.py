"""A small model that spells, loaded with room for drafts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.support.speculation.speculating import CONTEXT, ROOM
from conformance.support.spelling import Spelling
from engine import Engine


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Spelling(format="Q8_0").write(tmp_path_factory.mktemp("drafted") / "small.gguf")


@pytest.fixture(scope="session")
def shared(small: Path) -> Iterator[Engine]:
    with Engine.load(small, threads=2, context=CONTEXT, **ROOM) as engine:
        yield engine


@pytest.fixture
def engine(shared: Engine) -> Engine:
    shared.reset()
    return shared
