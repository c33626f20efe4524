"""llama.cpp's quantisers: which formats its mixes choose, and how large its errors are."""

import ctypes
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from conformance.llama.peers.rows import FITTED, PLAIN, error, importance, sets
from conformance.llama.peers.skeletons import Formats, Skeleton, formats_by_role
from engine.gguf.file import GGUFFile
from engine.quantise.mixes import MIXES
from reference.formats import FORMATS
from reference.op import Array

BASE = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
BASE.ggml_quantize_chunk.restype = ctypes.c_size_t
BASE.ggml_quantize_chunk.argtypes = [
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64,
    ctypes.c_void_p,
]  # fmt: skip


def quantise(
    source: Path, out: Path, file_type: int, importance: Mapping[str, Array] | None = None
) -> bool:
    """Whether llama.cpp made the file: some mixes it refuses without an importance matrix, float32
    [elements] for each weight."""
    wanted = llama_cpp.llama_model_quantize_default_params()
    wanted.ftype, wanted.nthread = file_type, 1
    if importance is not None:
        wanted.imatrix = _table(importance)
    given = str(source).encode(), str(out).encode()
    return bool(llama_cpp.llama_model_quantize(*given, ctypes.byref(wanted)) == 0)


def _table(importance: Mapping[str, Array]) -> Any:
    """An array of structs that ends with an empty one."""
    table = (llama_cpp.llama_cpp.llama_model_imatrix_data * (len(importance) + 1))()
    for entry, (name, columns) in zip(table, importance.items(), strict=False):
        entry.name, entry.size = name.encode(), len(columns)
        entry.data = columns.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    return table


def mixes(skeleton: Skeleton) -> dict[str, list[Formats | None]]:
    """What each mix gives a skeleton's matrices, without an importance matrix and, if that is
    another answer, with one; None for a refusal."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        source, out = skeleton.write(Path(folder) / "in.gguf"), Path(folder) / "out.gguf"
        for name in skeleton.mixes:
            plain, weighed = (
                _formats(skeleton, out)
                if quantise(source, out, MIXES[name].file_type, columns)
                else None
                for columns in (None, skeleton.importance())
            )
            found[name] = [plain] if plain == weighed else [plain, weighed]
    return found


def _formats(skeleton: Skeleton, path: Path) -> Formats:
    with GGUFFile(path) as file:
        return formats_by_role(
            skeleton, {name: tensor.type_name for name, tensor in file.tensors.items()}
        )


def rows(name: str, x: Array, columns: Array | None) -> Array:
    """float32 [rows, elements], importance [elements] -> uint8 [rows, row_bytes]."""
    form = FORMATS[name]
    out = np.zeros((len(x), form.row_bytes(x.shape[1])), np.uint8)
    matters = None if columns is None else columns.ctypes.data
    BASE.ggml_quantize_chunk(form.gguf_type, x.ctypes.data, out.ctypes.data, 0, *x.shape, matters)
    return out


def errors() -> dict[str, dict[str, dict[str, float]]]:
    """`plain` errors, weighted by the elements' squares, and `weighed` by importance, by format and
    set."""
    found = {}
    every = sets()
    for name in FITTED:
        plain = {
            key: error(name, rows(name, x, None), x, x.astype(np.float64) ** 2)
            for key, x in every.items()
            if name in PLAIN
        }
        weighed = {
            key: error(name, rows(name, x, importance(x)), x, importance(x))
            for key, x in every.items()
        }
        found[name] = {"plain": plain, "weighed": weighed}
    return found
