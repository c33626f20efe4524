"""Stacks tensors that checkpoints number and GGUF stores as one: those of a block's experts, or
heads."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.convert.checkpoint import Tensor
from engine.convert.json_files import CheckpointError
from reference.formats.format import Floats

EXPERTS = re.compile(r"(.+\.experts)\.(\d+)\.(\w+\.weight)")


@dataclass(frozen=True, slots=True)
class Stacked:
    """Tensors of the same dimensions as one tensor with a further dimension."""

    parts: tuple[Tensor, ...]

    @property
    def file(self) -> Path:
        return self.parts[0].file

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype

    @property
    def dims(self) -> tuple[int, ...]:
        return (len(self.parts), *self.parts[0].dims)

    def rows(self, first: int, last: int) -> Floats:
        """A range of the tensors, whole."""
        return np.stack([part.rows(0, part.dims[0]) for part in self.parts[first:last]])


def stacked(
    tensors: Mapping[str, Tensor], pattern: re.Pattern[str] = EXPERTS, what: str = "expert"
) -> dict[str, Tensor]:
    """All tensors, with numbered ones stacked: PREFIX.experts.3.NAME as PREFIX.experts.NAME, or any
    pattern of PREFIX, a number and NAME."""
    found: dict[str, Tensor] = {}
    several: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if one := pattern.fullmatch(name):
            several.setdefault(f"{one[1]}.{one[3]}", {})[int(one[2])] = tensor
        else:
            found[name] = tensor
    for name, numbered in several.items():
        parts = tuple(numbered[number] for number in sorted(numbered))
        where = f"{parts[0].file}: tensor {name}"
        if missing := set(range(len(parts))) - set(numbered):
            raise CheckpointError(f"{where}: of {what} {min(missing)} there is none")
        for number, part in enumerate(parts):
            if (part.dims, part.dtype) != (parts[0].dims, parts[0].dtype):
                raise CheckpointError(f"{where}: that of {what} {number} is not like that of 0")
        found[name] = Stacked(parts)
    return found
