"""A Hugging Face model's folder: JSON files, and tensors read a range of rows at a time."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from engine.convert.json_files import LFS, CheckpointError, pointer, read_json
from engine.torch_file import StoredTensor, TorchFileError, load
from reference.formats.format import Floats

SAFE, TORCH = "model.safetensors", "pytorch_model.bin"
DTYPES = ("F32", "F16", "BF16")
_SHARD = re.compile(r"model-(\d+)-of-(\d+)\.safetensors")


class Tensor(Protocol):
    """A tensor on disk; `dtype` is safetensors' name of its type."""

    @property
    def file(self) -> Path: ...

    @property
    def dtype(self) -> str: ...

    @property
    def dims(self) -> tuple[int, ...]: ...

    def rows(self, first: int, last: int) -> Floats:
        """float32 [last - first, ...]: a range of its first dimension."""


def demand(tensor: Tensor, dims: tuple[int, ...], where: str) -> None:
    """Raise unless a tensor has these dimensions and a readable type."""
    if tensor.dims != dims:
        raise CheckpointError(f"{where} is {list(tensor.dims)}, not {list(dims)}")
    if tensor.dtype not in DTYPES:
        raise CheckpointError(f"{where} is {tensor.dtype}; readable are {', '.join(DTYPES)}")


class Checkpoint:
    """A folder with a config and weights, opened and checked; nothing is loaded.

    config    config.json tensors   name -> `Tensor`, of all files files     the files with tensors

    Raises `CheckpointError` where something is missing or invalid.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: this is not a folder; want that of a model")
        self.folder = folder
        self.config = read_json(folder / "config.json")
        self.tensors: Mapping[str, Tensor]
        whole, read = (SAFE, _safetensors) if _files(folder, SAFE) else (TORCH, torch_tensors)
        self.files = _files(folder, whole)
        if not self.files:
            raise CheckpointError(f"{folder}: there are no weights: want model*.safetensors")
        self.tensors = _merged({file: read(file) for file in self.files})
        if missing := sorted(set(_weight_map(folder, whole) or ()) - set(self.tensors)):
            raise CheckpointError(f"{_index(folder, whole)}: no shard has tensor {missing[0]!r}")
        self._stamps = {file: _stamp(file) for file in self.files}

    def watch(self, files: Iterable[Path]) -> None:
        """Watch files elsewhere for changes, too."""
        self._stamps |= {file: _stamp(file) for file in files}

    def check_unchanged(self) -> None:
        """Raise if a watched file, or one with tensors, was written to since."""
        for file, stamp in self._stamps.items():
            if not file.exists() or _stamp(file) != stamp:
                raise CheckpointError(f"{file}: it was changed while it was read")

    def json(self, name: str) -> dict[str, Any]:
        """A JSON file of the folder; empty if it is missing."""
        path = self.folder / name
        return read_json(path) if path.exists() else {}

    def part(self, name: str, field: str) -> dict[str, Any]:
        """An object within one; empty where it is missing."""
        found = self.json(name).get(field) or {}
        if not isinstance(found, dict):
            raise CheckpointError(f"{self.folder / name}: {field} is no JSON object")
        return found


def _files(folder: Path, whole: str) -> list[Path]:
    """The files with tensors: those of the index, the only one, or a complete series."""
    if (shard_of := _weight_map(folder, whole)) is not None:
        names = sorted(set(map(str, shard_of.values())))
        if strange := [name for name in names if Path(name).name != name]:
            raise CheckpointError(
                f"{_index(folder, whole)}: {strange[0]!r} is not a file beside it"
            )
    elif (folder / whole).exists():
        names = [whole]
    else:
        found = filter(None, (_SHARD.fullmatch(path.name) for path in folder.iterdir()))
        series = {match[2]: match[1] for match in found if whole == SAFE}
        if len(series) > 1:
            raise CheckpointError(
                f"{folder}: shards of several series, and no {_index(folder, whole).name}"
            )
        names = [
            f"model-{i:0{len(first)}}-of-{count}.safetensors"
            for count, first in series.items()
            for i in range(1, int(count) + 1)
        ]
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name}: this shard is missing")
    return [folder / name for name in names]


def _index(folder: Path, whole: str) -> Path:
    return folder / f"{whole}.index.json"


def _weight_map(folder: Path, whole: str) -> dict[str, Any] | None:
    """The index's file for each tensor; None where there is no index."""
    index = _index(folder, whole)
    if not index.exists():
        return None
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise CheckpointError(f"{index}: there is no weight_map")
    return names


def _merged(files: Mapping[Path, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file, its in files.items():
        if twice := sorted(set(its) & set(tensors)):
            raise CheckpointError(f"{file}: another shard has a tensor {twice[0]!r}, too")
        tensors |= its
    return tensors


def _safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file that the package considers valid. Its reader is not used: it has no
    bfloat16 for NumPy."""
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
    found = {}
    for name, entry in header.items():
        dims = tuple(entry["shape"])
        strides = tuple(math.prod(dims[i + 1 :]) for i in range(len(dims)))
        begin = 8 + size + entry["data_offsets"][0]
        found[name] = StoredTensor(path, entry["dtype"], begin, dims, strides)
    return found


def torch_tensors(path: Path) -> Mapping[str, StoredTensor]:
    """The tensors of a PyTorch file."""
    try:
        state = load(path)
    except TorchFileError as error:
        raise CheckpointError(str(error)) from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: this is not a table of tensors")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, StoredTensor) or not tensor.dims:
            raise CheckpointError(f"{path}: {name!r} in it is no tensor")
    return state


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_size, found.st_mtime_ns
