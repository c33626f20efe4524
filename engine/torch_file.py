"""Read PyTorch checkpoints without PyTorch and without executing them.

    NAME/data.pkl    a pickle of the saved object; tensors are a storage, an offset, sizes and
                     strides in elements
    NAME/data/KEY    a storage: elements, little-endian unless NAME/byteorder is different

The file is an uncompressed zip archive (torch.save since version 1.6).

>>> load(Path("model_0.pt"))["fc1.weight"].dims
(1024, 4096)
"""

import io
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from engine.errors import EngineError
from engine.file_errors import shown_path, unreadable
from reference.formats import FORMATS
from reference.formats.format import Floats
from reference.op import Array

LOCAL_HEADER = 30  # bytes of a zip member's local header before its name
STORAGES = {  # safetensors' dtype, and NumPy's
    "FloatStorage": ("F32", "<f4"),
    "HalfStorage": ("F16", "<f2"),
    "BFloat16Storage": ("BF16", "<u2"),
    "DoubleStorage": ("F64", "<f8"),
    "LongStorage": ("I64", "<i8"),
    "IntStorage": ("I32", "<i4"),
    "ShortStorage": ("I16", "<i2"),
    "CharStorage": ("I8", "i1"),
    "ByteStorage": ("U8", "u1"),
    "BoolStorage": ("BOOL", "?"),
}
KINDS = dict(STORAGES.values())


class TorchFileError(EngineError):
    """Not a PyTorch file, or one that contains more than tensors; one line."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a PyTorch or safetensors file: `dtype` is safetensors', `begin` the byte offset
    of its first element, and `strides` are in elements."""

    file: Path
    dtype: str
    begin: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]

    def rows(self, first: int, last: int) -> Floats:
        """Rows of the first dimension, [last - first, ...], as `read` returns them."""
        begin = self.begin + first * self.strides[0] * np.dtype(KINDS[self.dtype]).itemsize
        return replace(self, begin=begin, dims=(last - first, *self.dims[1:])).read()

    def read(self) -> Array:
        """Read the tensor, C-contiguous: F32, F16 and BF16 as float32, others in NumPy's type."""
        kind, span = np.dtype(KINDS[self.dtype]), _span(self.dims, self.strides)
        found = np.fromfile(self.file, kind, span, offset=self.begin)
        if len(found) != span:
            raise TorchFileError(f"{shown_path(self.file)}: truncated while being read")
        steps = [stride * kind.itemsize for stride in self.strides]
        stored = np.lib.stride_tricks.as_strided(found, self.dims, steps).copy(order="C")
        if self.dtype not in FORMATS:
            return stored
        values = FORMATS[self.dtype].dequantise(stored.reshape(-1).view(np.uint8))
        return values.reshape(self.dims)


@dataclass(frozen=True, slots=True)
class Storage:
    """`count` elements in a file, from byte `begin` on."""

    dtype: str
    begin: int
    count: int


def load(path: Path) -> Any:
    """Load a checkpoint's structure, with a `StoredTensor` (not yet read) for each tensor.

    It may contain dicts, OrderedDicts, lists, texts and numbers; anything else raises
    `TorchFileError`, as does a file of another type.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if any(info.compress_type != zipfile.ZIP_STORED for info in members.values()):
                raise _error(path, "its members are compressed: not a PyTorch file")
            pickles = [name for name in members if name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise _error(path, "a zip archive, but not a PyTorch file")
            home = pickles[0].removesuffix("data.pkl")
            if (order := f"{home}byteorder") in members and archive.read(order) != b"little":
                raise _error(path, "its numbers are big-endian")
            data = archive.read(pickles[0])
            begins = {
                name.removeprefix(f"{home}data/"): (_data_offset(file, info), info.file_size)
                for name, info in members.items()
                if name.startswith(f"{home}data/")
            }
    except OSError as error:
        raise TorchFileError(unreadable(path, error)) from None
    except (zipfile.BadZipFile, struct.error, EOFError, RuntimeError, NotImplementedError):
        raise _error(
            path, "not a complete PyTorch file; files of versions before 1.6 must be saved again"
        ) from None
    try:
        return TensorUnpickler(path, data, begins).load()
    except TorchFileError:
        raise
    except Exception:  # pickles fail in many ways
        raise _error(path, "the table of its tensors cannot be read") from None


def _span(dims: Sequence[int], strides: Sequence[int]) -> int:
    """Elements in memory from the first to the last one."""
    steps = ((dim - 1) * stride for dim, stride in zip(dims, strides, strict=True))
    return 0 if 0 in dims else 1 + sum(steps)


def _error(path: Path, fault: str) -> TorchFileError:
    return TorchFileError(f"{shown_path(path)}: {fault}")


def _data_offset(file: Any, info: zipfile.ZipInfo) -> int:
    """File offset of a member's data; the local header's lengths differ from the directory's."""
    file.seek(info.header_offset)
    name, extra = struct.unpack("<26x2H", file.read(LOCAL_HEADER))
    return info.header_offset + LOCAL_HEADER + int(name) + int(extra)


class TensorUnpickler(pickle.Unpickler):
    """Unpickler for tensors and containers only; `begins` has offset and size of each storage."""

    def __init__(self, path: Path, data: bytes, begins: dict[str, tuple[int, int]]) -> None:
        super().__init__(io.BytesIO(data))
        self._path, self._begins = path, begins

    def find_class(self, module: str, name: str) -> Any:
        """The allowed globals, as local replacements."""
        known = {
            "collections.OrderedDict": OrderedDict,
            "torch._utils._rebuild_tensor_v2": lambda *parts: self._tensor(*parts),
            "torch._utils._rebuild_parameter": lambda tensor, *_: tensor,
            **{f"torch.{storage}": storage for storage in STORAGES},
        }
        if (found := known.get(f"{module}.{name}")) is None:
            self._refuse(f"it holds {module}.{name}, which is neither a tensor nor a container")
        return found

    def persistent_load(self, pid: Any) -> Storage:
        _, name, key, _, count = pid
        dtype, kind = STORAGES[name]
        if key not in self._begins:
            self._refuse(f"storage {key} is missing")
        begin, size = self._begins[key]
        if count * np.dtype(kind).itemsize > size:
            self._refuse(f"storage {key} has {size} bytes, not {count} numbers in {dtype}")
        return Storage(dtype, begin, count)

    def _tensor(
        self,
        storage: Storage,
        offset: int,
        dims: tuple[int, ...],
        strides: tuple[int, ...],
        *_: Any,
    ) -> StoredTensor:
        sizes = [offset, *dims, *strides]
        if len(dims) != len(strides) or any(type(n) is not int or n < 0 for n in sizes):
            self._refuse("a tensor's sizes are invalid")
        if offset + _span(dims, strides) > storage.count:
            self._refuse("a tensor has more elements than its storage")
        begin = storage.begin + offset * np.dtype(KINDS[storage.dtype]).itemsize
        return StoredTensor(self._path, storage.dtype, begin, tuple(dims), tuple(strides))

    def _refuse(self, fault: str) -> NoReturn:
        raise _error(self._path, fault)
