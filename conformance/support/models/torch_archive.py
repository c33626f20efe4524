"""Write torch.save's format without PyTorch: for tests of our reader without it."""

import io
import pickle
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

STORAGE_OF = {
    "float32": "FloatStorage", "float16": "HalfStorage", "float64": "DoubleStorage",
    "int64": "LongStorage", "int32": "IntStorage", "uint16": "BFloat16Storage",
}  # fmt: skip


def _rebuild_tensor_v2() -> None:
    """A stand-in for PyTorch's function."""


_rebuild_tensor_v2.__module__ = "torch._utils"
KINDS = {name: type(name, (), {"__module__": "torch"}) for name in STORAGE_OF.values()}
MODULES = {
    "torch": SimpleNamespace(**KINDS),
    "torch._utils": SimpleNamespace(_rebuild_tensor_v2=_rebuild_tensor_v2),
}


class Storage:
    """The memory of an array."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


class Pickler(pickle.Pickler):
    """Pickles arrays as tensors, whose memory is in `storages`. 16-bit words are bfloat16."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 2)
        self.storages: list[np.ndarray[Any, Any]] = []

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return NotImplemented
        strides = tuple(stride // value.itemsize for stride in value.strides)
        base = value if value.base is None else value.base
        sizes = (Storage(base), 0, value.shape, strides)
        return _rebuild_tensor_v2, (*sizes, False, OrderedDict())

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Storage):
            return None
        self.storages.append(value.array)
        kind = KINDS[STORAGE_OF[value.array.dtype.name]]
        return "storage", kind, str(len(self.storages) - 1), "cpu", value.array.size


def save(value: Any, path: Path) -> None:
    """Save tables, lists and texts, with arrays as tensors. A view becomes a tensor of its base's
    memory with its offset."""
    data = io.BytesIO()
    pickler = Pickler(data)
    with patch.dict(sys.modules, MODULES):
        pickler.dump(value)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data.getvalue())
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
        for i, array in enumerate(pickler.storages):
            archive.writestr(f"archive/data/{i}", array.tobytes())
