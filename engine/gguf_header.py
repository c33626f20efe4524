"""The header of a GGUF file, with every fact held against the file before it is believed.

    header   4 bytes of magic, u32 version, u64 tensors, u64 keys
    key      string name, u32 type, value; of an array: u32 element type, u64 count, elements
    tensor   string name, u32 dimensions, a u64 each, u32 type, u64 offset from the data's start
    data     begins at the next multiple of the alignment

Little-endian throughout; a string is a u64 length and its bytes. Lengths and counts are compared
with the bytes that are left before anything is allocated, so memory stays within a small multiple
of the file's size whatever the file claims.

The tables of the format are the `gguf` package's. Its reader is not used: it makes two arrays for
every string, 11 s for a vocabulary of 150 000 tokens.
"""

import math
import mmap
import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

import numpy as np
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
)

MAGICS = (b"GGUF", b"PWRI")
VERSIONS = (2, 3)  # the same layout: 3 only allows for big-endian files, which we refuse
ALIGNMENT = "general.alignment"
MAX_NAME = 64  # bytes
MAX_DIMS = 4
MAX_ELEMENTS = 2**60  # exclusive, so that 8 bytes each still have a signed 64-bit count

NUMBERS = {
    GGUFValueType.UINT8: np.dtype("u1"),
    GGUFValueType.INT8: np.dtype("i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("u1"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")

# The fewest bytes that one of each can take.
STRING_BYTES = 8
KEY_BYTES = STRING_BYTES + 4 + 1
TENSOR_BYTES = STRING_BYTES + 4 + 8 + 4 + 8

# What is opened by mistake, by its first bytes.
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


class GGUFError(ValueError):
    """A file that cannot be used; the message is one plain line: file, place, fault, byte."""


class ValueType(NamedTuple):
    """The type of a key's value; `element` is that of an array's elements, otherwise None."""

    kind: GGUFValueType
    element: GGUFValueType | None


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a tensor is, and where.

    `type_name` is the `gguf` package's, such as "Q4_0". `dims` counts elements in NumPy's order,
    (rows, elements), the reverse of ggml's `ne`. `offset` is in bytes from the file's beginning.
    """

    name: str
    type_name: str
    dims: tuple[int, ...]
    offset: int
    n_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row, which is `dims[-1]` elements."""
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[self.type_name]]
        return int(self.dims[-1] // block * block_bytes)


@dataclass(frozen=True, slots=True)
class Header:
    """All that a file says before its data."""

    magic: str
    version: int
    metadata: dict[str, Any]
    value_types: dict[str, ValueType]
    tensors: dict[str, TensorInfo]


class Cursor:
    """Reads a file from its beginning, never past its end.

    `at` is the next byte and `place` the part of the file it belongs to, for error messages.
    """

    def __init__(self, data: mmap.mmap, file: str) -> None:
        self.data = data
        self.file = file
        self.size = len(data)
        self.at = 0
        self.place = "header"

    def fail(self, fault: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        raise GGUFError(f"{self.file}: {self.place}: {fault} (byte {at})")

    def skip(self, n_bytes: int, what: str) -> int:
        """Move past `n_bytes` and return where they begin."""
        start = self.at
        if n_bytes > self.size - start:
            left = self.size - start
            self.fail(f"the file ends within {what}: {n_bytes} bytes long, {left} are left")
        self.at = start + n_bytes
        return start

    def u32(self, what: str) -> int:
        return int(U32.unpack_from(self.data, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack_from(self.data, self.skip(8, what))[0])

    def count(self, what: str, least_bytes: int) -> int:
        """A count of things that take at least `least_bytes` each, so that many can be there."""
        count = self.u64(f"the number of {what}")
        left = self.size - self.at
        if count > left // least_bytes:
            self.fail(f"{count} {what} cannot be in the {left} bytes that are left", self.at - 8)
        return count

    def name(self) -> str:
        """A name, which unlike other strings must be UTF-8."""
        start = self.at
        length = self.u64("the length of the name")
        begin = self.skip(length, "the name")
        try:
            return str(self.data[begin : self.at], "utf-8")
        except UnicodeDecodeError as error:
            self.fail(f"the name is not UTF-8 at its byte {error.start}", start)

    def value_type(self) -> GGUFValueType:
        number = self.u32("the type")
        try:
            return GGUFValueType(number)
        except ValueError:
            self.fail(f"there is no value type {number}", self.at - 4)

    def values(self, kind: GGUFValueType, count: int) -> list[Any]:
        """So many values of one type, which is not an array."""
        if kind == GGUFValueType.STRING:
            return self.strings(count)
        dtype = NUMBERS[kind]
        start = self.skip(count * dtype.itemsize, "the value")
        numbers = np.frombuffer(self.data, dtype, count, start)
        if kind != GGUFValueType.BOOL:
            return numbers.tolist()
        if numbers.max(initial=0) > 1:
            i = int(np.argmax(numbers > 1))
            self.fail(f"a bool is 0 or 1, not {numbers[i]}", start + i)
        return numbers.astype(bool).tolist()

    def strings(self, count: int) -> list[str]:
        # The loop that decides how long a vocabulary takes: 300 000 turns for a large one.
        data, size, at = self.data, self.size, self.at
        texts = []
        for i in range(count):
            start = at + STRING_BYTES
            at = start + U64.unpack_from(data, at)[0] if start <= size else start
            if at > size:
                self.fail(f"the file ends within string {i} of {count}", start - STRING_BYTES)
            texts.append(str(data[start:at], "utf-8", "surrogateescape"))
        self.at = at
        return texts


def read_header(data: mmap.mmap, file: str) -> Header:
    """The header of a whole file; `file` names it in errors. Raises `GGUFError`."""
    cursor = Cursor(data, file)
    magic = read_magic(cursor)
    version = read_version(cursor)
    n_tensors = cursor.count("tensors", TENSOR_BYTES)
    n_keys = cursor.count("keys", KEY_BYTES)
    metadata, value_types = read_metadata(cursor, n_keys)
    tensors = read_tensors(cursor, n_tensors, read_alignment(cursor, metadata, value_types))
    return Header(magic, version, metadata, value_types, tensors)


def read_magic(cursor: Cursor) -> str:
    start = cursor.data[:32]
    magic = start[:4]
    if magic in MAGICS:
        cursor.skip(4, "the magic")
        return magic.decode()
    if any(known.startswith(magic) for known in MAGICS):
        cursor.fail("the file ends within the magic")
    like = next((what for first, what in LOOKALIKES if start.startswith(first)), None)
    if start[8:9] == b"{":
        like = "a safetensors file"
    cursor.fail(f"not a GGUF file, {f'but {like}' if like else f'which begins with {magic!r}'}")


def read_version(cursor: Cursor) -> int:
    version = cursor.u32("the version")
    if version in VERSIONS:
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    found = f"big-endian version {swapped}" if swapped in (1, *VERSIONS) else f"version {version}"
    cursor.fail(f"GGUF in {found} is not supported, little-endian 2 and 3 are", cursor.at - 4)


def read_metadata(cursor: Cursor, count: int) -> tuple[dict[str, Any], dict[str, ValueType]]:
    """Values and their types by key."""
    metadata: dict[str, Any] = {}
    value_types: dict[str, ValueType] = {}
    for i in range(count):
        cursor.place = f"key {i}"
        key = cursor.name()
        if key in metadata:
            cursor.fail(f"{shown(key)} is the name of an earlier key too")
        cursor.place = f"key {shown(key)}"
        value_types[key], metadata[key] = read_value(cursor)
    return metadata, value_types


def read_value(cursor: Cursor) -> tuple[ValueType, Any]:
    kind = cursor.value_type()
    if kind != GGUFValueType.ARRAY:
        return ValueType(kind, None), cursor.values(kind, 1)[0]
    element = cursor.value_type()
    if element == GGUFValueType.ARRAY:
        cursor.fail("arrays of arrays are not supported", cursor.at - 4)
    least_bytes = NUMBERS[element].itemsize if element in NUMBERS else STRING_BYTES
    return ValueType(kind, element), cursor.values(element, cursor.count("elements", least_bytes))


def read_alignment(
    cursor: Cursor, metadata: dict[str, Any], value_types: dict[str, ValueType]
) -> int:
    """Bytes; the offset of every tensor is a multiple of it."""
    if ALIGNMENT not in metadata:
        return int(GGUF_DEFAULT_ALIGNMENT)
    cursor.place = f"key {shown(ALIGNMENT)}"
    alignment, kind = metadata[ALIGNMENT], value_types[ALIGNMENT].kind
    if kind != GGUFValueType.UINT32:
        cursor.fail(f"it must be UINT32, not {kind.name}")
    if alignment.bit_count() != 1:
        cursor.fail(f"{alignment} is not a power of two")
    return int(alignment)


def read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    """Tensors by name, each wholly within the file and none in another's bytes."""
    found = []
    for i in range(count):
        cursor.place = f"tensor {i}"
        found.append(read_tensor(cursor, alignment))
    data = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for tensor in (replace(tensor, offset=data + tensor.offset) for tensor in found):
        cursor.place = f"tensor {shown(tensor.name)}"
        if tensor.name in tensors:
            cursor.fail("an earlier tensor has the same name")
        if tensor.offset + tensor.n_bytes > cursor.size:
            cursor.fail(f"the file ends within its {tensor.n_bytes} bytes of data", tensor.offset)
        tensors[tensor.name] = tensor
    stored = sorted((t for t in tensors.values() if t.n_bytes), key=attrgetter("offset"))
    for before, after in pairwise(stored):
        if before.offset + before.n_bytes > after.offset:
            cursor.place = f"tensor {shown(after.name)}"
            cursor.fail(f"it overlaps tensor {shown(before.name)}", after.offset)
    return tensors


def read_tensor(cursor: Cursor, alignment: int) -> TensorInfo:
    """One tensor, its offset still from the beginning of the data."""
    start = cursor.at
    name = cursor.name()
    if len(name.encode()) > MAX_NAME:
        cursor.fail(f"the name {shown(name)} has more than {MAX_NAME} bytes", start)
    cursor.place = f"tensor {shown(name)}"
    n_dims = cursor.u32("the number of dimensions")
    if not 1 <= n_dims <= MAX_DIMS:
        cursor.fail(f"a tensor has 1 to {MAX_DIMS} dimensions, not {n_dims}", cursor.at - 4)
    dims = tuple(cursor.u64("the dimensions") for _ in range(n_dims))[::-1]
    # An empty dimension must not hide that the others are beyond all bounds.
    if math.prod(max(dim, 1) for dim in dims) >= MAX_ELEMENTS:
        cursor.fail(f"{' x '.join(map(str, dims))} is 2^60 elements or more")
    number = cursor.u32("the type")
    try:
        kind = GGMLQuantizationType(number)
        block, block_bytes = GGML_QUANT_SIZES[kind]
    except (ValueError, KeyError):
        cursor.fail(f"there is no tensor type {number}", cursor.at - 4)
    if dims[-1] % block:
        cursor.fail(f"{kind.name} rows hold multiples of {block} elements, not {dims[-1]}")
    offset = cursor.u64("the offset")
    if offset % alignment:
        cursor.fail(f"offset {offset} is not a multiple of {alignment}", cursor.at - 8)
    return TensorInfo(name, kind.name, dims, offset, math.prod(dims) // block * block_bytes)


def shown(name: str) -> str:
    """A name from a file, quoted and short enough for a message of one line."""
    return repr(name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…")
