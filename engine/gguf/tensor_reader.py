"""Reads tensors with plain reads. A mapped file that others truncate kills the process with SIGBUS;
tools that read a whole file report an error instead."""

import os
from collections.abc import Iterator
from typing import Self

import numpy as np

from engine.file_errors import reason, shown_path, unreadable
from engine.gguf.file import Bytes, GGUFError, GGUFFile, TensorInfo, is_unchanged

PIECE = 2**26  # bytes read at a time


class TensorReader:
    """Reads the tensors of an open `GGUFFile`. Raises `GGUFError` where the file is no longer the
    one that was opened."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        try:
            self._source = file.path.open("rb")
        except OSError as error:
            raise GGUFError(unreadable(file.path, error)) from None

    def check(self) -> None:
        """Raise if the file has changed since it was opened."""
        if not is_unchanged(self._source, self.file.stamp):
            raise GGUFError(f"{shown_path(self.file.path)}: it changed while it was read")

    def read(self, offset: int, n_bytes: int) -> Bytes:
        """uint8 [n_bytes] from an offset in the file."""
        data = np.empty(n_bytes, np.uint8)
        done = 0
        while done < n_bytes:
            try:
                count = os.preadv(self._source.fileno(), [data[done:].data], offset + done)
            except OSError as error:
                where = f"{shown_path(self.file.path)}: cannot be read at byte {offset + done}"
                raise GGUFError(f"{where}: {reason(error)}") from None
            if not count:
                raise GGUFError(f"{shown_path(self.file.path)}: it was cut short while it was read")
            done += count
        return data

    def rows(self, tensor: TensorInfo, at_least: int = PIECE) -> Iterator[Bytes]:
        """The tensor's rows, uint8 [rows, row_bytes], in pieces of so many bytes or one row
        more."""
        n_rows = tensor.n_bytes // tensor.row_bytes if tensor.row_bytes else 0
        step = -(-at_least // tensor.row_bytes) if n_rows else 1
        for first in range(0, n_rows, step):
            count = min(step, n_rows - first)
            offset = tensor.offset + first * tensor.row_bytes
            yield self.read(offset, count * tensor.row_bytes).reshape(count, tensor.row_bytes)

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
