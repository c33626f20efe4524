"""Rows of embeddings, read for each step: a table of which a token needs one row stays on disk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.gguf.file import GGUFFile, TensorInfo
from engine.gguf.tensor_reader import TensorReader
from engine.graph import Value
from engine.plan import CpuStep

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Table:
    """A tensor's rows, which the step's input `chooses` picks; those of this step are in `memory`,
    uint8 [tokens, row_bytes]."""

    tensor: TensorInfo
    chooses: str
    memory: Array


class Rows:
    """The tables that `steps` read one row a token of, and the steps as they read only what was
    gathered."""

    def __init__(self, steps: Sequence[CpuStep], file: GGUFFile, most: int) -> None:
        self._reader = TensorReader(file)
        self.tables: list[Table] = []
        self.arrays: dict[str, Array] = {}
        self.steps = [self._gathered(step, file, most) for step in steps]

    def _gathered(self, step: CpuStep, file: GGUFFile, most: int) -> CpuStep:
        arguments = step.node.arguments
        chosen, weight = arguments.get("tokens"), arguments.get("weight")
        if step.node.op != "embedding" or not isinstance(weight, Value) or weight.kind != "weight":
            return step
        assert isinstance(chosen, Value)
        tensor = file.tensors[weight.name]
        memory = np.zeros((most, tensor.row_bytes), np.uint8)
        self.tables.append(Table(tensor, chosen.name, memory))
        rows, order = f"{weight.name}.gathered", f"{weight.name}.order"
        self.arrays |= {rows: memory, order: np.arange(most, dtype=np.int32)}
        gathered = replace(weight, name=rows, dims=(most, *weight.dims[1:]))
        own = {"weight": gathered, "tokens": replace(chosen, name=order)}
        return replace(step, node=replace(step.node, arguments={**arguments, **own}))

    def gather(self, inputs: Mapping[str, Sequence[int]]) -> None:
        """Read what the tokens of a step need, given the step's inputs by name.

        Raises `GGUFError` if the file is no longer the one that was opened.
        """
        self._reader.check()
        for table in self.tables:
            size, first = table.tensor.row_bytes, table.tensor.offset
            for i, row in enumerate(inputs[table.chooses]):
                table.memory[i] = self._reader.read(first + row * size, size)
        self._reader.check()

    def close(self) -> None:
        self._reader.close()
