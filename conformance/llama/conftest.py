"""The engine over a model that spells."""

import pytest

from engine import Engine


@pytest.fixture(scope="module")
def shared(spelling):
    with Engine.load(spelling, threads=2, context=64) as engine:
        yield engine


@pytest.fixture
def engine(shared):
    shared.reset()
    return shared
