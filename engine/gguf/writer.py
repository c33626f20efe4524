"""Writing GGUF files (layout: file.py), tensors' bytes as a stream.

The `gguf` package's writer is not used: it drops keys whose arrays are empty, has one magic, and
takes texts that are not UTF-8 only as bytes.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from engine.atomic_write import atomic_write
from engine.gguf.cursor import NUMBERS, U32, U64, ValueType
from engine.gguf.file import ALIGNMENT, Bytes, bytes_of
from engine.progress import ProgressCallback

Keys = Mapping[str, tuple[ValueType, Any]]


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to be written: `type_name` and `dims` as in `TensorInfo`."""

    name: str
    type_name: str
    dims: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        return bytes_of(self.type_name, math.prod(self.dims))


def write_gguf(
    out: Path,
    keys: Keys,
    tensors: Sequence[NewTensor],
    pieces: Iterable[Bytes],
    *,
    magic: str = "GGUF",
    version: int = 3,
    reads: Path | None = None,
    progress: ProgressCallback | None = None,
) -> None:
    """Write a file atomically: it exists when complete, and not at all after an error.

    `pieces` are C-contiguous uint8 arrays that together are the tensors' bytes, in order. `reads`
    is the file that they come from, if any, so that it is not overwritten. `progress` receives
    bytes of tensors written and in total. Raises `OutputError`, and `ValueError` if the pieces are
    not the tensors.
    """
    alignment = keys[ALIGNMENT][1] if ALIGNMENT in keys else GGUF_DEFAULT_ALIGNMENT
    with atomic_write(out, reads=reads) as file:
        file.write(magic.encode() + struct.pack("<IQQ", version, len(tensors), len(keys)))
        for key, (kind, value) in keys.items():
            file.write(_text(key) + _value(kind, value))
        offset = 0
        for tensor in tensors:
            file.write(_entry(tensor, offset))
            offset += -(-tensor.n_bytes // alignment) * alignment
        _pad(file, alignment)
        _write_data(file, tensors, pieces, alignment, progress)


def _write_data(
    file: BinaryIO,
    tensors: Sequence[NewTensor],
    pieces: Iterable[Bytes],
    alignment: int,
    progress: ProgressCallback | None,
) -> None:
    stream, done, total = iter(pieces), 0, sum(tensor.n_bytes for tensor in tensors)
    for tensor in tensors:
        left = tensor.n_bytes
        while left:
            piece = next(stream, None)
            if piece is None or piece.nbytes > left:
                raise ValueError(
                    f"tensor {tensor.name!r}: its pieces are not {tensor.n_bytes} bytes"
                )
            file.write(piece.data)
            left -= piece.nbytes
            done += piece.nbytes
            if progress:
                progress(done, total)
        _pad(file, alignment)
    if next(stream, None) is not None:
        raise ValueError("there are more bytes than the tensors have")


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def _text(text: str) -> bytes:
    """A length and bytes; lone surrogates are bytes that were not UTF-8."""
    data = text.encode("utf-8", "surrogateescape")
    return U64.pack(len(data)) + data


def _value(kind: ValueType, value: Any) -> bytes:
    if kind.element is None:
        return U32.pack(kind.kind) + _elements(kind.kind, [value])
    head = U32.pack(kind.kind) + U32.pack(kind.element) + U64.pack(len(value))
    return head + _elements(kind.element, value)


def _elements(kind: GGUFValueType, values: Sequence[Any]) -> bytes:
    if kind == GGUFValueType.STRING:
        return b"".join(map(_text, values))
    return np.array(values, NUMBERS[kind]).tobytes()


def _entry(tensor: NewTensor, offset: int) -> bytes:
    dims = tensor.dims[::-1]
    kind = GGMLQuantizationType[tensor.type_name]
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return _text(tensor.name) + shape + struct.pack("<IQ", kind, offset)


def _scalar(kind: GGUFValueType) -> Any:
    return lambda value: (ValueType(kind, None), value)


def _array(kind: GGUFValueType) -> Any:
    return lambda values: (ValueType(GGUFValueType.ARRAY, kind), list(values))


# A value with its type, as `Keys` holds them.
_T = GGUFValueType
text, boolean, f32 = map(_scalar, (_T.STRING, _T.BOOL, _T.FLOAT32))
u32, u64, i32 = map(_scalar, (_T.UINT32, _T.UINT64, _T.INT32))
texts, booleans, i32s, f32s = map(_array, (_T.STRING, _T.BOOL, _T.INT32, _T.FLOAT32))
