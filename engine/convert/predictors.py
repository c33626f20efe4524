"""Predictors as PowerInfer's converter takes them, in a folder of their own:

    model_{i}.pt   for each block: fc1.weight [rank, hidden] and fc2.weight [ffn, rank]
    config.json    {"sparse_threshold": what a neuron's logit has to reach}; 0 where it is missing

With them a model becomes a sparse file: down transposed, so that a neuron is a row of it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from engine.config import ModelConfig
from engine.convert.checkpoint import Tensor, demand, torch_tensors
from engine.convert.family import Source
from engine.convert.fields import Fields
from engine.convert.json_files import CheckpointError, read_json
from engine.sparsity import SPARSE_ACTIVATIONS
from reference.formats.format import Floats

FILE = re.compile(r"model_(0|[1-9]\d*)\.pt")
CONFIG = "config.json"
PIECE = 2**22  # elements of a matrix read at a time for transposing
LARGEST = float(np.finfo(np.float32).max)
MATRICES = ("fc1.weight", "fc2.weight")


@dataclass(frozen=True, slots=True)
class Predictors:
    """`tensors` by their GGUF names, blk.{i}.fc1.weight and blk.{i}.fc2.weight, of these `files`;
    `notes` for the model's owner."""

    tensors: Mapping[str, Tensor]
    files: tuple[Path, ...]
    threshold: float
    notes: tuple[str, ...]

    def into(
        self, sources: Mapping[str, Source], tensors: Mapping[str, Tensor]
    ) -> tuple[dict[str, Source], dict[str, Tensor]]:
        """A model's sources and a checkpoint's tensors with these added, and each ffn_down as
        ffn_down_t."""
        found: dict[str, Source] = {}
        turned: dict[str, Tensor] = {}
        for name, source in sources.items():
            if name.endswith(".ffn_down.weight"):
                turned[source.name] = Transposed(tensors[source.name])
                source = replace(source, dims=source.dims[::-1])
            found[name.replace(".ffn_down.", ".ffn_down_t.")] = source
        found |= {name: Source(name, tensor.dims) for name, tensor in self.tensors.items()}
        return found, {**tensors, **turned, **self.tensors}


@dataclass(frozen=True, slots=True)
class Transposed:
    """The transpose of another matrix."""

    matrix: Tensor

    @property
    def file(self) -> Path:
        return self.matrix.file

    @property
    def dtype(self) -> str:
        return self.matrix.dtype

    @property
    def dims(self) -> tuple[int, ...]:
        return self.matrix.dims[::-1]

    def rows(self, first: int, last: int) -> Floats:
        count, width = self.matrix.dims
        found = np.empty((last - first, count), np.float32)
        step = max(1, PIECE // width)
        for begin in range(0, count, step):
            end = min(begin + step, count)
            found[:, begin:end] = self.matrix.rows(begin, end)[:, first:last].T
        return found


def read_predictors(folder: Path, model: ModelConfig) -> Predictors:
    """The predictors in a folder, for as many blocks and of the sizes that the model has. Raises
    `CheckpointError` where they are another model's, or no predictors."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: this is not a folder; want that of predictors")
    numbers = {int(m[1]) for p in folder.iterdir() if (m := FILE.fullmatch(p.name))}
    if lacking := sorted(set(range(model.blocks)) - numbers):
        raise CheckpointError(f"{folder / f'model_{lacking[0]}.pt'}: there is no such file")
    if more := sorted(numbers - set(range(model.blocks))):
        raise CheckpointError(
            f"{folder / f'model_{more[0]}.pt'}: a predictor of another model:"
            f" this one has {model.blocks} blocks"
        )
    files = tuple(folder / f"model_{i}.pt" for i in range(model.blocks))
    found: dict[str, Tensor] = {}
    for i, file in enumerate(files):
        found |= {f"blk.{i}.{name}": tensor for name, tensor in _pair(file, model).items()}
    threshold, notes = _threshold(folder / CONFIG), []
    if threshold is None:
        notes.append(f"{folder}: nothing is said of sparse_threshold, so it is 0")
    if relu := SPARSE_ACTIVATIONS.get(model.activation):
        notes.append(f"its activation is {model.activation}; a sparse model runs with {relu}")
    return Predictors(found, files, threshold or 0.0, tuple(notes))


def _pair(file: Path, model: ModelConfig) -> dict[str, Tensor]:
    """The matrices of one block."""
    held = torch_tensors(file)
    for name in MATRICES:
        if name not in held:
            raise CheckpointError(f"{file}: tensor {name} is missing")
    if more := sorted(set(held) - set(MATRICES)):
        raise CheckpointError(f"{file}: tensor {more[0]} has no place in a predictor")
    rank = max(1, held[MATRICES[0]].dims[0])
    for name, dims in zip(MATRICES, ((rank, model.hidden), (model.ffn, rank)), strict=True):
        demand(held[name], dims, f"{file}: tensor {name}")
    return {name: held[name] for name in MATRICES}


def _threshold(path: Path) -> float | None:
    fields = Fields(read_json(path) if path.exists() else {}, str(path))
    if fields.get("sparse_threshold") is None:
        return None
    threshold = fields.real("sparse_threshold")
    if abs(threshold) > LARGEST:
        raise fields.error(f"sparse_threshold is {threshold:g}, which float32 cannot hold")
    return threshold
