"""The engine over a model that spells."""

import pytest

from conformance.support.spelling import Spelling
from engine import Engine


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return Spelling(format="Q8_0").write(tmp_path_factory.mktemp("generate") / "small.gguf")


@pytest.fixture(scope="module")
def shared(path):
    with Engine.load(path, threads=2, context=64) as engine:
        yield engine


@pytest.fixture
def engine(shared):
    shared.reset()
    return shared
