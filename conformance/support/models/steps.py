"""A model that is loaded for a while, and what it says of a text."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.model import Model
from engine.options import Options
from reference.op import Array


@contextmanager
def loaded(path: Path, **options: Any) -> Iterator[Model]:
    """On one thread, unless `options` say otherwise; closed afterwards."""
    model = Model(path, Options(**{"threads": 1, **options}))
    try:
        yield model
    finally:
        model.close()


def rows(model: Model, tokens: Sequence[int], start: int = 0, sequence: int = 0) -> Array:
    """The logits after each of these tokens, of one step; the next one writes over them."""
    where = range(start, start + len(tokens))
    return model.step(tokens, where, [(sequence,)] * len(tokens), range(len(tokens)))


def logits(path: Path, tokens: Sequence[int], **options: Any) -> Array:
    """Those of a model that forgets nothing to its cache's rounding."""
    with loaded(path, kv_format="F32", **options) as model:
        return rows(model, tokens).copy()
