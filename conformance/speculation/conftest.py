"""A small model that spells, loaded with room for drafts."""

import pytest

from conformance.support.models.spelling import Spelling
from conformance.support.speculation.speculating import CONTEXT, ROOM
from engine import Engine


@pytest.fixture(scope="session")
def small(tmp_path_factory):
    return Spelling(format="Q8_0").write(tmp_path_factory.mktemp("drafted") / "small.gguf")


@pytest.fixture(scope="session")
def shared(small):
    with Engine.load(small, threads=2, context=CONTEXT, **ROOM) as engine:
        yield engine


@pytest.fixture
def engine(shared):
    shared.reset()
    return shared
