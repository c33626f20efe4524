"""GGUF files: a header, read and checked, and tensors that are views of the mapped file.

    header   4 bytes of magic, u32 version, u64 tensors, u64 keys
    key      name, u32 type, value; an array is u32 element type, u64 count, elements
    tensor   name, u32 dimensions, a u64 each, u32 type, u64 offset from the data's beginning
    data     begins at the next multiple of the alignment

>>> with GGUFFile("model.gguf") as file:
...     file.metadata["general.architecture"], file.tensors["output.weight"].dims
('llama', (32000, 2048))

The tables of the format are those of the `gguf` package. Its reader is not used: it makes two
arrays for every string, 11 s for a vocabulary of 150 000 tokens.
"""

import hashlib
import math
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import numpy as np
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
)

from engine.closeable import Closeable
from engine.file_errors import shown_path, unreadable
from engine.gguf.cursor import STRING_BYTES, Cursor, GGUFError, ValueType, shown
from reference.formats import FORMATS

__all__ = ["GGUFError", "GGUFFile", "TensorInfo", "ValueType"]

MAGICS = (b"GGUF", b"PWRI")
VERSIONS = (2, 3)  # the same layout: 3 only adds big-endian files, which are refused
ALIGNMENT = "general.alignment"
MAX_NAME_BYTES = 64  # dimensions of a tensor
MAX_DIMS = 4
MAX_ELEMENTS = 2**60  # exclusive, so that 8 bytes each still have a signed 64-bit count
KEY_BYTES = STRING_BYTES + 4 + 1  # the fewest bytes of a key
TENSOR_BYTES = STRING_BYTES + 4 + 8 + 4 + 8  # and of a tensor's entry

# Other files that users open by mistake, by their first bytes.
LOOKALIKES = (
    (b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint"),
    (b"tjgg", "a GGJT file, from before GGUF"),
    (b"fmgg", "a GGMF file, from before GGUF"),
    (b"lmgg", "a GGML file, from before GGUF"),
    (b"version https://git-lfs", "a Git LFS pointer, for which `git lfs pull` gets the file"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x80", "a Python pickle"),
    (b"<", "an HTML or XML page"),
    (b"{", "JSON"),
)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def bytes_of(type_name: str, elements: int) -> int:
    """Bytes of so many elements, in whole blocks of a tensor's type."""
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    return int(elements // block * block_bytes)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a tensor is, and where.

    `type_name` is the `gguf` package's, such as "Q4_0". `dims` counts elements in NumPy's order,
    (rows, elements), the reverse of ggml's `ne`. `offset` is in bytes from the file's beginning.
    Rows are `stride` bytes apart, or follow one another where it is 0; matrices are `apart` bytes
    apart, or follow one another. Where rows are `picked`, it is of these alone, counted from the
    offset on. One whose matrices are those of another, `turned`
    round, is made of that one's bytes, in F32.
    """

    name: str
    type_name: str
    dims: tuple[int, ...]
    offset: int
    n_bytes: int
    stride: int = 0
    apart: int = 0
    picked: tuple[int, ...] = ()
    turned: "TensorInfo | None" = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, which is `dims[-1]` elements."""
        return bytes_of(self.type_name, self.dims[-1])

    def rows(self, name: str, first: int, count: int) -> "TensorInfo":
        """A range of rows of a matrix, or elements of a vector, as a tensor of its own."""
        each = bytes_of(self.type_name, math.prod(self.dims[1:]))
        return TensorInfo(
            name,
            self.type_name,
            (count, *self.dims[1:]),
            self.offset + first * (self.stride or each),
            count * each,
            self.stride,
        )

    def of_each(self, name: str, first: int, count: int) -> "TensorInfo":
        """A range of rows of each matrix, as a tensor of its own."""
        matrices, rows, elements = self.dims
        return replace(
            self,
            name=name,
            dims=(matrices, count, elements),
            offset=self.offset + first * self.row_bytes,
            n_bytes=matrices * count * self.row_bytes,
            apart=rows * self.row_bytes,
        )

    def only(self, name: str, numbers: Iterable[int], matrices: int = 0) -> "TensorInfo":
        """Selected rows of a matrix, at least one, as a tensor of its own: a matrix, or so many
        `matrices`."""
        picked = tuple(map(int, numbers))
        count = (matrices, len(picked) // matrices) if matrices else (len(picked),)
        dims, size = (*count, *self.dims[1:]), len(picked) * self.row_bytes
        return replace(self, name=name, dims=dims, n_bytes=size, picked=picked)

    def turned_round(self) -> "TensorInfo":
        """The same matrices transposed."""
        *matrices, rows, elements = self.dims
        return replace(
            self,
            type_name="F32",
            dims=(*matrices, elements, rows),
            n_bytes=4 * math.prod(self.dims),
            turned=self,
        )

    @property
    def span(self) -> int:
        """Bytes from its begin to its end, in the file."""
        if self.turned:
            return self.turned.span
        if self.apart:
            return (self.dims[0] - 1) * self.apart + self.n_bytes // self.dims[0]
        if not (self.picked or self.stride):
            return self.n_bytes
        rows = max(self.picked) + 1 if self.picked else self.dims[0]
        return rows * (self.stride or self.row_bytes)


def _stored(mapping: mmap.mmap, info: TensorInfo) -> Bytes:
    """A tensor's bytes, uint8 [..., row_bytes]."""
    if not (info.picked or info.stride or info.apart):
        stored = np.frombuffer(mapping, np.uint8, info.n_bytes, info.offset)
        return stored.reshape(*info.dims[:-1], info.row_bytes)
    if info.apart:
        dims, steps = (*info.dims[:-1], info.row_bytes), (info.apart, info.row_bytes, 1)
        return np.ndarray(dims, np.uint8, mapping, info.offset, steps)
    stride = info.stride or info.row_bytes
    shape, strides = (info.span // stride, info.row_bytes), (stride, 1)
    rows = np.ndarray(shape, np.uint8, mapping, info.offset, strides)
    return rows[list(info.picked)].reshape(*info.dims[:-1], -1) if info.picked else rows


class GGUFFile(Closeable):
    """A little-endian GGUF file of version 2 or 3, mapped read-only.

    path, size   where it is, and its bytes
    stamp        size, dates of change and inode when it was opened: they change with its content
    magic        "GGUF", or "PWRI" for the sparse models of PowerInfer
    version      2 or 3
    metadata     key -> str, int, float, bool or a list of one of these
    value_types  key -> `ValueType`, what it takes to write the key again
    tensors      name -> `TensorInfo`, in the file's order
    header       sha256 of all before the tensors' bytes

    Raises `GGUFError` for anything else. Bytes that are not UTF-8 survive in the metadata's texts
    as lone surrogates (`surrogateescape`): a vocabulary may hold parts of a character, and only
    those who use a text know whether that matters.

    A file that others cut short while it is open is not noticed: touching what is gone ends the
    process with SIGBUS, as with every mapped file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._mapping: mmap.mmap | None
        self._mapping, self.stamp = map_file(self.path)
        try:
            cursor = Cursor(self._mapping, shown_path(self.path))
            self.size = cursor.size
            self.magic = read_magic(cursor)
            self.version = read_version(cursor)
            n_tensors = cursor.count("tensors", TENSOR_BYTES)
            n_keys = cursor.count("keys", KEY_BYTES)
            self.metadata, self.value_types = read_keys(cursor, n_keys)
            alignment = read_alignment(cursor, self.metadata, self.value_types)
            self.tensors = read_tensors(cursor, n_tensors, alignment)
            self._header_bytes = cursor.at
        except BaseException:
            self.close()
            raise

    def tensor(self, name: str) -> Bytes:
        """The stored bytes, uint8 [..., row_bytes], as a read-only view of the file; where rows are
        picked, or matrices transposed, a copy.

        Raises `GGUFError` if the file has no such tensor or was closed.
        """
        mapping, info = self._open(), self.tensors.get(name)
        if info is None:
            raise GGUFError(f"{shown_path(self.path)}: there is no tensor {shown(name)}")
        if info.turned:
            values = FORMATS[info.turned.type_name].dequantise(_stored(mapping, info.turned))
            return np.ascontiguousarray(values.swapaxes(-1, -2), np.float32).view(np.uint8)
        return _stored(mapping, info)

    def release(self, name: str) -> None:
        """Drop the tensor's pages from memory, where the system can: they are read from the file
        again when touched. Views stay valid."""
        if self._mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        info = self.tensors[name]
        first = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE  # private pages
        last = min(info.offset + info.span, self.size) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            self._mapping.madvise(mmap.MADV_DONTNEED, first, last - first)

    @property
    def header(self) -> str:
        """sha256 of the stored metadata and table of tensors."""
        return hashlib.sha256(self._open()[: self._header_bytes]).hexdigest()

    def _open(self) -> mmap.mmap:
        if self._mapping is None:
            raise GGUFError(f"{shown_path(self.path)}: the file was closed")
        return self._mapping

    def close(self) -> None:
        """Release the mapping; views still in use keep it until the last one is gone."""
        if self._mapping is not None:
            with suppress(BufferError):
                self._mapping.close()
            self._mapping = None


def map_file(path: Path) -> tuple[mmap.mmap, tuple[int, ...]]:
    """Map the whole file read-only; returns the mapping and its stamp."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for its writer
            raise GGUFError(f"{shown_path(path)}: this is not a file")
        with path.open("rb") as file:
            stamp = stamp_of(file)
            if not stamp[0]:
                raise GGUFError(f"{shown_path(path)}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), stamp
    except OSError as error:
        raise GGUFError(unreadable(path, error)) from None


def stamp_of(file: IO[bytes]) -> tuple[int, ...]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def is_unchanged(file: IO[bytes], stamp: tuple[int, ...]) -> bool:
    """Whether an open file still has this stamp. A file that was merely unlinked, since another
    took its name, is unchanged: only its inode's date differs."""
    size, written, changed, inode = stamp_of(file)
    if not os.fstat(file.fileno()).st_nlink:
        changed = stamp[2]
    return (size, written, changed, inode) == stamp


def read_magic(cursor: Cursor) -> str:
    start = cursor.data[:32]
    magic = start[:4]
    if magic in MAGICS:
        cursor.skip(len(magic), "the magic")
        return magic.decode()
    if any(known.startswith(magic) for known in MAGICS):
        raise cursor.error("the file ends within the magic")
    like = next((what for first, what in LOOKALIKES if start.startswith(first)), None)
    if start[8:9] == b"{":  # after the length of safetensors' JSON
        like = "a safetensors file"
    found = f"it looks like {like}" if like else f"it begins with {magic!r}"
    raise cursor.error(f"this is not a GGUF file, {found}")


def read_version(cursor: Cursor) -> int:
    version = cursor.u32("the version")
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    found = f"big-endian version {swapped}" if swapped in (1, *VERSIONS) else f"version {version}"
    raise cursor.error(f"{found} is not supported, little-endian 2 and 3 are", cursor.at - 4)


def read_keys(cursor: Cursor, count: int) -> tuple[dict[str, Any], dict[str, ValueType]]:
    """Values and their types, by key."""
    metadata: dict[str, Any] = {}
    value_types: dict[str, ValueType] = {}
    for i in range(count):
        cursor.place = f"key {i}"
        key = cursor.name()
        cursor.place = f"key {shown(key)}"
        if key in metadata:
            raise cursor.error("an earlier key has the same name")
        value_types[key], metadata[key] = cursor.value()
    return metadata, value_types


def read_alignment(
    cursor: Cursor, metadata: dict[str, Any], value_types: dict[str, ValueType]
) -> int:
    """The alignment of every tensor's offset, in bytes."""
    if ALIGNMENT not in metadata:
        return int(GGUF_DEFAULT_ALIGNMENT)
    cursor.place = f"key {shown(ALIGNMENT)}"
    alignment, kind = metadata[ALIGNMENT], value_types[ALIGNMENT].kind
    if kind != GGUFValueType.UINT32:
        raise cursor.error(f"it must be UINT32, not {kind.name}")
    if alignment.bit_count() != 1:
        raise cursor.error(f"{alignment} is not a power of two")
    return int(alignment)


def read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    """Tensors by name, each entirely within the file and without overlap."""
    listed = []
    for i in range(count):
        cursor.place = f"tensor {i}"
        listed.append(read_tensor(cursor, alignment))
    data = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for tensor in (replace(tensor, offset=data + tensor.offset) for tensor in listed):
        cursor.place = f"tensor {shown(tensor.name)}"
        if tensor.name in tensors:
            raise cursor.error("an earlier tensor has the same name")
        if tensor.offset + tensor.n_bytes > cursor.size:
            raise cursor.error(f"the file ends within its {tensor.n_bytes} bytes", tensor.offset)
        tensors[tensor.name] = tensor
    stored = sorted((t for t in tensors.values() if t.n_bytes), key=attrgetter("offset"))
    for before, after in pairwise(stored):
        if before.offset + before.n_bytes > after.offset:
            cursor.place = f"tensor {shown(after.name)}"
            raise cursor.error(f"it overlaps tensor {shown(before.name)}", after.offset)
    return tensors


def read_tensor(cursor: Cursor, alignment: int) -> TensorInfo:
    """One tensor, whose offset still counts from the beginning of the data."""
    start = cursor.at
    name = cursor.name()
    cursor.place = f"tensor {shown(name)}"
    if len(name.encode()) > MAX_NAME_BYTES:
        raise cursor.error(f"its name has more than {MAX_NAME_BYTES} bytes", start)
    n_dims = cursor.u32("the number of dimensions")
    if not 1 <= n_dims <= MAX_DIMS:
        raise cursor.error(f"it has {n_dims} dimensions, not 1 to {MAX_DIMS}", cursor.at - 4)
    dims = tuple(cursor.u64("the dimensions") for _ in range(n_dims))[::-1]
    # An empty dimension must not hide that the others are too large.
    if math.prod(max(dim, 1) for dim in dims) >= MAX_ELEMENTS:
        shape = " x ".join(map(str, dims))
        raise cursor.error(f"{shape} is 2^60 elements or more", cursor.at - 8 * n_dims)
    number = cursor.u32("the tensor type")
    try:
        kind = GGMLQuantizationType(number)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        raise cursor.error(f"there is no tensor type {number}", cursor.at - 4) from None
    if dims[-1] % block:
        fault = f"{kind.name} rows hold multiples of {block} elements, not {dims[-1]}"
        raise cursor.error(fault, cursor.at - 4 - 8 * n_dims)
    offset = cursor.u64("the offset")
    if offset % alignment:
        raise cursor.error(f"offset {offset} is not a multiple of {alignment}", cursor.at - 8)
    return TensorInfo(name, kind.name, dims, offset, math.prod(dims) // block * block_bytes)
