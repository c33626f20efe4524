"""Embedding tables on disk, of which each step reads the rows that its tokens need."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine.gguf.file import GGUFFile, TensorInfo
from engine.gguf.tensor_reader import TensorReader
from reference.op import Array


@dataclass(frozen=True, slots=True)
class Table:
    """A tensor whose rows are chosen by the step's input `chooses`; this step's rows are in
    `memory`, uint8 [tokens, row_bytes]."""

    tensor: TensorInfo
    chooses: str
    memory: Array


class Rows:
    """Tables of a file, for steps of at most so many tokens."""

    def __init__(self, file: GGUFFile, most: int) -> None:
        self._reader, self._file, self._most = TensorReader(file), file, most
        self.tables: list[Table] = []

    def of(self, tensor: str, chooses: str) -> tuple[Array, Array]:
        """Memory for a table's rows chosen by an input, and their indices there, int32 [tokens]."""
        info = self._file.tensors[tensor]
        memory = np.zeros((self._most, info.row_bytes), np.uint8)
        self.tables.append(Table(info, chooses, memory))
        return memory, np.arange(self._most, dtype=np.int32)

    @property
    def choosing(self) -> set[str]:
        """Names of inputs that choose rows."""
        return {table.chooses for table in self.tables}

    def gather(self, inputs: Mapping[str, Sequence[int]]) -> None:
        """Read the rows that a step's tokens need, given its inputs by name.

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
