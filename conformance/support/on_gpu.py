"""Models on a GPU, which the emulator takes the place of."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from conformance.support import steps
from conformance.support.steps import loaded
from engine.model import Model
from reference.op import Array


@contextmanager
def on_gpu(path: Path, **options: Any) -> Iterator[Model]:
    """With room for two sequences of a text."""
    with loaded(path, **{"context": 40, "device": "cuda", **options}) as model:
        yield model


def rows(model: Model, text: Sequence[int], chunks: Sequence[int] = ()) -> Array:
    """Logits after every token of a text that comes in chunks of these sizes, then one by one."""
    model.cells.clear()
    found, start = [], 0
    while start < len(text):
        size = chunks[len(found)] if len(found) < len(chunks) else 1
        part = text[start : start + size]
        found.append(steps.rows(model, part, start).copy())
        start += len(part)
    return np.concatenate(found)
