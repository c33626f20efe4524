"""GGUF files: a header that was read and checked, and tensors that are views of the mapped file.

>>> with GGUFFile("model.gguf") as file:
...     file.metadata["general.architecture"], file.tensors["output.weight"].dims
('llama', (32000, 2048))
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from engine.gguf_header import GGUFError, TensorInfo, ValueType, read_header, shown

__all__ = ["GGUFError", "GGUFFile", "TensorInfo", "ValueType"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class GGUFFile:
    """A little-endian GGUF file of version 2 or 3, mapped read-only.

    path, size   where it is, and its bytes
    magic        "GGUF", or "PWRI" for the sparse models of PowerInfer
    version      2 or 3
    metadata     key -> str, int, float, bool or a list of one of these
    value_types  key -> `ValueType`, what writing the same key again needs
    tensors      name -> `TensorInfo`, in the file's order

    Raises `GGUFError` for anything else. Bytes that are not UTF-8 survive in the metadata's texts
    as lone surrogates (`surrogateescape`): a vocabulary may well hold halves of a character, and
    only who uses a text knows whether that matters.

    A file cut short by others while it is open is not noticed: touching what is gone ends the
    process with SIGBUS, as with every mapped file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._mapping: mmap.mmap | None = map_file(self.path)
        self.size = len(self._mapping)
        try:
            header = read_header(self._mapping, shown_path(self.path))
        except BaseException:
            self.close()
            raise
        self.magic = header.magic
        self.version = header.version
        self.metadata = header.metadata
        self.value_types = header.value_types
        self.tensors = header.tensors

    def tensor(self, name: str) -> Bytes:
        """The stored bytes, uint8 [..., row_bytes], as a read-only view of the file: no copy.

        Raises `GGUFError` if the file has no such tensor or was closed.
        """
        if self._mapping is None:
            raise GGUFError(f"{shown_path(self.path)}: the file was closed")
        info = self.tensors.get(name)
        if info is None:
            raise GGUFError(f"{shown_path(self.path)}: there is no tensor {shown(name)}")
        stored = np.frombuffer(self._mapping, np.uint8, info.n_bytes, info.offset)
        return stored.reshape(*info.dims[:-1], info.row_bytes)

    def close(self) -> None:
        """Release the mapping; views that are still in use keep it until the last one is gone."""
        if self._mapping is not None:
            with suppress(BufferError):
                self._mapping.close()
            self._mapping = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def map_file(path: Path) -> mmap.mmap:
    """The whole file, read-only; raises `GGUFError` if that cannot be had."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise GGUFError(f"{shown_path(path)}: this is not a file")
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise GGUFError(f"{shown_path(path)}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise GGUFError(f"{shown_path(path)}: cannot be read: {reason}") from None


def shown_path(path: Path) -> str:
    """The path as it is, or quoted if it would not stay on one line."""
    return str(path) if str(path).isprintable() else repr(str(path))
