"""One engine with and without drafts, and the invariants of its cache between generations."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.support.models.spelling import LETTERS
from engine import Engine, Piece, SamplingParams
from engine.speculation.drafter import Drafter
from engine.speculation.speculate import Speculation

VOCAB = LETTERS + 27  # of the small model
CONTEXT = 64
BRANCHES = 6
LONGEST = 16
ROOM: dict[str, Any] = {"sequences": 2 + BRANCHES, "outputs": 1 + LONGEST}  # for drafts


@contextmanager
def drafting(
    engine: Engine, drafter: Drafter, most: int = LONGEST, adaptive: bool = False
) -> Iterator[None]:
    """A context in which the engine uses this drafter."""
    engine.speculation = Speculation(engine.model, drafter, most, BRANCHES, adaptive)
    try:
        yield
    finally:
        engine.speculation = None


def sampling(params: dict[str, Any]) -> SamplingParams:
    """Greedy unless `params` differ."""
    return SamplingParams(**{"temperature": 0.0, "seed": 0, **params})


def pieces(engine: Engine, prompt: Any, params: dict[str, Any], **how: Any) -> list[Piece]:
    """A whole generation."""
    return list(engine.stream(prompt, sampling(params), **how))


def unmarked(found: Sequence[Piece]) -> list[Piece]:
    """The pieces without their marks of drafted tokens."""
    return [replace(piece, drafted=False) for piece in found]


def ids(found: Sequence[Piece]) -> list[int]:
    return [piece.token for piece in found]


def demand_settled(engine: Engine) -> None:
    """Assert that sequence 0 has the cells of `held`, in order, and that none is lost."""
    cells = engine.model.cells
    assert cells.positions_of(0).tolist() == list(range(len(engine.text.held)))
    assert cells.lengths[1:] == [0] * (cells.n_sequences - 1)
    assert cells.free == cells.capacity - len(engine.text.held)
    assert np.unique(cells.list_of(0)).size == len(engine.text.held)
