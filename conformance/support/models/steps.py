"""Load a model in a context, and compute its logits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.model import Model
from engine.options import Options
from reference.op import Array


@contextmanager
def loaded(path: Path, **options: Any) -> Iterator[Model]:
    """On one thread, unless `options` differ; closed afterwards."""
    model = Model(path, Options(**{"threads": 1, **options}))
    try:
        yield model
    finally:
        model.close()


def rows(model: Model, tokens: Sequence[int], start: int = 0, sequence: int = 0) -> Array:
    """The logits after each of these tokens, in one step; the next step overwrites them."""
    where = range(start, start + len(tokens))
    return model.step(tokens, where, [(sequence,)] * len(tokens), range(len(tokens)))


def logits(path: Path, tokens: Sequence[int], **options: Any) -> Array:
    """The logits of a model with an F32 cache."""
    with loaded(path, kv_format="F32", **options) as model:
        return rows(model, tokens).copy()
