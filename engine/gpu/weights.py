"""Weights as kernels of a device read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.gguf.file import GGUFFile
from engine.gpu.layout import Layout
from engine.graph import Value
from engine.passes.fuse import GpuStep

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight that a step reads; `tensor` names the file's that it is, packed if `is_packed`."""

    step: GpuStep
    value: Value

    @property
    def is_packed(self) -> bool:
        return bool(self.step.weight) and self.step.node.arguments["weight"] is self.value

    @property
    def tensor(self) -> str:
        return self.step.weight if self.is_packed else self.value.name


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's: `arrays` by name, all others in the `file`."""

    arrays: Mapping[str, Array]
    file: GGUFFile

    def bytes(self, weight: Weight) -> int:
        """On the device."""
        if weight.is_packed:
            pack = weight.step.kernel.pack
            assert pack is not None
            info = self.file.tensors[weight.tensor]
            return pack.bytes(info.dims[0], info.row_bytes)
        if weight.tensor in self.arrays:
            return self.arrays[weight.tensor].nbytes
        return self.file.tensors[weight.tensor].n_bytes

    def array(self, weight: Weight) -> Array:
        """As it lies there."""
        if weight.is_packed:
            pack = weight.step.kernel.pack
            assert pack is not None
            return pack(self.file.tensor(weight.tensor))
        if weight.tensor in self.arrays:
            return np.ascontiguousarray(self.arrays[weight.tensor])
        return np.ascontiguousarray(self.file.tensor(weight.tensor))

    def stored(self, weight: Weight) -> int:
        """Bytes of the file."""
        known = self.file.tensors.get(weight.tensor)
        return known.n_bytes if known else 0

    def release(self, weight: Weight) -> None:
        """Let what was read of the file go."""
        if weight.tensor in self.file.tensors:
            self.file.release(weight.tensor)


def weights_in(layout: Layout) -> dict[str, Weight]:
    """Those that the steps read, by name."""
    return {
        value.name: Weight(step, value)
        for step in layout.steps()
        for value in step.arrays.values()
        if value.kind == "weight"
    }
