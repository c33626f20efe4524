"""Models on a GPU, which the emulator takes the place of."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from engine.model import Model
from engine.options import Options
from reference.op import Array


@contextmanager
def on_gpu(path: Path, **options: Any) -> Iterator[Model]:
    """With room for two sequences of a text."""
    model = Model(path, Options(**{"threads": 1, "context": 40, "device": "cuda", **options}))
    try:
        yield model
    finally:
        model.close()


def rows(model: Model, text: Sequence[int], chunks: Sequence[int] = ()) -> Array:
    """Logits after every token of a text that comes in chunks of these sizes, then one by one."""
    model.cells.clear()
    found, start = [], 0
    while start < len(text):
        size = chunks[len(found)] if len(found) < len(chunks) else 1
        part = text[start : start + size]
        where = range(start, start + len(part))
        step = model.step(part, where, [(0,)] * len(part), range(len(part)))
        found.append(step.copy())
        start += len(part)
    return np.concatenate(found)
