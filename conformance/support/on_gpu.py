"""Models on an emulated GPU."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from conformance.cuda.emulator import Emulator
from conformance.support.models import steps
from conformance.support.models.steps import loaded
from engine.model import Model
from kernels.cuda.runtime.device import Buffer
from kernels.cuda.runtime.launch import Grid, Launch
from reference.op import Array


class Watched(Emulator):
    """Records the sizes of allocations, writes, reads and asynchronous reads; the launches of each
    function, and its library's products."""

    def __init__(self, total: int = 2**32) -> None:
        super().__init__(total)
        self.wanted, self.written, self.read_back, self.asked = [list[int]() for _ in range(4)]
        self.launched, self.multiplied = Counter[str](), 0

    def empty(self, size: int) -> Buffer:
        self.wanted.append(size)
        return super().empty(size)

    def write(self, buffer: Buffer, array: Array) -> None:
        self.written.append(array.nbytes)
        super().write(buffer, array)

    def read(self, buffer: Buffer, array: Array) -> None:
        self.read_back.append(array.nbytes)
        super().read(buffer, array)

    def ask(self, buffer: Buffer) -> Callable[[], Array]:
        self.asked.append(buffer.bytes)
        return super().ask(buffer)

    def launch(self, launch: Launch, grid: Grid, values: Sequence[Any]) -> None:
        self.launched[launch.function] += not grid.empty
        super().launch(launch, grid, values)

    def sums(self, x: Array, weight: Array) -> Array:
        self.multiplied += 1
        return super().sums(x, weight)


@contextmanager
def on_gpu(path: Path, **options: Any) -> Iterator[Model]:
    """A model with room for two sequences of a text."""
    with loaded(path, **{"context": 40, "device": "cuda", **options}) as model:
        yield model


def rows(model: Model, text: Sequence[int], chunks: Sequence[int] = ()) -> Array:
    """Logits after every token of a text, in chunks of these sizes, then token by token."""
    model.cells.clear()
    found, start = [], 0
    while start < len(text):
        size = chunks[len(found)] if len(found) < len(chunks) else 1
        part = text[start : start + size]
        found.append(steps.rows(model, part, start).copy())
        start += len(part)
    return np.concatenate(found)
