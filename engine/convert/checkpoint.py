"""A Hugging Face model's folder: JSON files, and tensors that are read some rows at a time."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from engine.convert import torch_files
from engine.convert.json_files import LFS, CheckpointError, pointer, read_json
from reference.formats import FORMATS
from reference.formats.format import Floats

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
DTYPES = ("F32", "F16", "BF16")
_SHARD = re.compile(r"model-(\d+)-of-(\d+)\.safetensors")


class Tensor(Protocol):
    """A tensor on disk; `dtype` is safetensors' word for it."""

    @property
    def file(self) -> Path: ...

    @property
    def dtype(self) -> str: ...

    @property
    def dims(self) -> tuple[int, ...]: ...

    def rows(self, first: int, last: int) -> Floats:
        """float32 [last - first, ...]: a part of its first dimension."""


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """A tensor of a safetensors file; `offset` is in bytes from the file's beginning."""

    file: Path
    name: str
    dtype: str
    dims: tuple[int, ...]
    offset: int

    def rows(self, first: int, last: int) -> Floats:
        layout = FORMATS[self.dtype]
        row_bytes = layout.row_bytes(math.prod(self.dims[1:]))
        wanted = (last - first) * row_bytes
        stored = np.fromfile(self.file, np.uint8, wanted, offset=self.offset + first * row_bytes)
        if stored.nbytes != wanted:
            raise CheckpointError(f"{self.file}: it was cut short while it was read: {self.name}")
        return layout.dequantise(stored).reshape(last - first, *self.dims[1:])


def demand(tensor: Tensor, dims: tuple[int, ...], where: str) -> None:
    """Raise unless a tensor has these dimensions and a type that can be read."""
    if tensor.dims != dims:
        raise CheckpointError(f"{where} is {list(tensor.dims)}, not {list(dims)}")
    if tensor.dtype not in DTYPES:
        raise CheckpointError(f"{where} is {tensor.dtype}; readable are {', '.join(DTYPES)}")


class Checkpoint:
    """A folder with a config and weights, opened and checked; nothing is loaded.

    config    config.json
    tensors   name -> `Tensor`, of all files
    files     those that hold tensors

    Raises `CheckpointError` where something is missing or is not what its name says.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: this is not a folder; want that of a model")
        self.folder = folder
        self.config = read_json(folder / "config.json")
        self.tensors: Mapping[str, Tensor]
        if shards := _shards(folder):
            self.tensors = _merged({shard: _safetensors(shard) for shard in shards})
            _check_index(folder / INDEX, self.tensors)
            self.files = shards
        else:
            self.files = torch_files.files(folder)
            self.tensors = _merged({f: torch_files.tensors(f) for f in self.files})
        self._stamps = {file: _stamp(file) for file in self.files}

    def watch(self, files: Iterable[Path]) -> None:
        """Have an eye on files that are elsewhere, too."""
        self._stamps |= {file: _stamp(file) for file in files}

    def check_unchanged(self) -> None:
        """Raise if a file that holds tensors, or is watched, was written to since."""
        for file, stamp in self._stamps.items():
            if not file.exists() or _stamp(file) != stamp:
                raise CheckpointError(f"{file}: it was changed while it was read")

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder; empty where there is none."""
        path = self.folder / name
        return read_json(path) if path.exists() else {}

    def part(self, name: str, field: str) -> dict[str, Any]:
        """An object within one; empty where it is missing."""
        found = self.json(name).get(field) or {}
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.folder / name}: {field} is no JSON object")
        return found


def _shards(folder: Path) -> list[Path]:
    """The files that hold tensors: those of the index, the only one, or a complete series."""
    if (folder / INDEX).exists():
        names = sorted(set(map(str, _weight_map(folder / INDEX).values())))
        if strange := [name for name in names if Path(name).name != name]:
            raise CheckpointError(f"{folder / INDEX}: {strange[0]!r} is not a file beside it")
    elif (folder / WHOLE).exists():
        names = [WHOLE]
    else:
        found = filter(None, (_SHARD.fullmatch(path.name) for path in folder.iterdir()))
        series = {match[2]: match[1] for match in found}
        if len(series) > 1:
            raise CheckpointError(f"{folder}: shards of several series, and no {INDEX}")
        names = [
            f"model-{i:0{len(first)}}-of-{count}.safetensors"
            for count, first in series.items()
            for i in range(1, int(count) + 1)
        ]
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name}: this shard is missing")
    return [folder / name for name in names]


def _weight_map(index: Path) -> dict[str, Any]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index}: there is no weight_map")
    return names


def _check_index(index: Path, tensors: Iterable[str]) -> None:
    if index.exists() and (missing := sorted(set(_weight_map(index)) - set(tensors))):
        raise CheckpointError(f"{index}: no shard has tensor {missing[0]!r}")


def _merged(files: Mapping[Path, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file, its in files.items():
        if twice := sorted(set(its) & set(tensors)):
            raise CheckpointError(f"{file}: another shard has a tensor {twice[0]!r}, too")
        tensors |= its
    return tensors


def _safetensors(path: Path) -> dict[str, SafeTensor]:
    """The tensors of a file that the package finds whole.

    Its own reading is not used: it has no bfloat16 for NumPy.
    """
    from safetensors import SafetensorError, safe_open

    with path.open("rb") as file:
        start = file.read(len(LFS))
        if start == LFS:
            raise CheckpointError(pointer(path))
        try:
            with safe_open(path, "np"):
                pass
        except SafetensorError as error:
            raise CheckpointError(f"{path}: not a whole safetensors file: {error}") from None
        size = int.from_bytes(start[:8], "little")
        file.seek(8)
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return {
        name: SafeTensor(
            path, name, entry["dtype"], tuple(entry["shape"]), 8 + size + entry["data_offsets"][0]
        )
        for name, entry in header.items()
    }


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns
