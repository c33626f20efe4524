"""The elements of GGUF: numbers, names, values and counts, none read past the file's end.

Little-endian throughout; a string is a u64 length and its bytes. Lengths and counts are compared
with the remaining bytes before anything is allocated, so memory stays in proportion to the file's
size whatever the file claims.
"""

import mmap
import struct
from typing import Any, NamedTuple

import numpy as np
from gguf.constants import GGUFValueType

from engine.errors import EngineError

NUMBERS: dict[GGUFValueType, np.dtype[Any]] = {
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
STRING_BYTES = 8  # of an empty string
SHOWN = 64  # characters of a name in a message
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


class GGUFError(EngineError):
    """A file that cannot be used, in one plain line: file, place, fault, byte."""


class ValueType(NamedTuple):
    """The type of a key's value; `element` is the type of an array's elements, otherwise None."""

    kind: GGUFValueType
    element: GGUFValueType | None


class Cursor:
    """Reads a file from its beginning; raises `GGUFError` for whatever it cannot read.

    `at` is the next byte's offset and `place` the part of the file it belongs to, for messages.
    """

    def __init__(self, data: mmap.mmap, file: str) -> None:
        self.data = data
        self.file = file
        self.size = len(data)
        self.at = 0
        self.place = "header"

    def error(self, fault: str, at: int | None = None) -> GGUFError:
        """A fault at byte `at`, by default the cursor's position."""
        return GGUFError(
            f"{self.file}: {self.place}: {fault} (byte {self.at if at is None else at})"
        )

    def skip(self, n_bytes: int, what: str) -> int:
        """Advance by `n_bytes`; returns the old position."""
        start, left = self.at, self.size - self.at
        if n_bytes > left:
            raise self.error(f"the file ends within {what}: {n_bytes} bytes long, {left} are left")
        self.at = start + n_bytes
        return start

    def u32(self, what: str) -> int:
        return int(U32.unpack_from(self.data, self.skip(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack_from(self.data, self.skip(8, what))[0])

    def count(self, what: str, least_bytes: int) -> int:
        """Read a count of things of at least `least_bytes` each; GGUFError if they cannot fit."""
        count = self.u64(f"the number of {what}")
        left = self.size - self.at
        if count > left // least_bytes:
            raise self.error(f"{count} {what} do not fit into the {left} bytes left", self.at - 8)
        return count

    def name(self) -> str:
        """Read a name, which unlike other strings must be UTF-8."""
        start = self.skip(self.u64("the length of the name"), "the name")
        try:
            return str(self.data[start : self.at], "utf-8")
        except UnicodeDecodeError as error:
            raise self.error("the name is not UTF-8", start + error.start) from None

    def value_type(self) -> GGUFValueType:
        number = self.u32("the value type")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self.error(f"there is no value type {number}", self.at - 4) from None

    def value(self) -> tuple[ValueType, Any]:
        """Read a type and a value of it, as native Python."""
        kind = self.value_type()
        if kind != GGUFValueType.ARRAY:
            return ValueType(kind, None), self.elements(kind, 1)[0]
        element = self.value_type()
        if element == GGUFValueType.ARRAY:
            raise self.error("arrays of arrays are not supported", self.at - 4)
        least_bytes = NUMBERS[element].itemsize if element in NUMBERS else STRING_BYTES
        count = self.count("elements", least_bytes)
        return ValueType(kind, element), self.elements(element, count)

    def elements(self, kind: GGUFValueType, count: int) -> list[Any]:
        """Read so many values of one type, which is not an array."""
        if kind == GGUFValueType.STRING:
            return self.strings(count)
        dtype = NUMBERS[kind]
        start = self.skip(count * dtype.itemsize, "the value")
        numbers = np.frombuffer(self.data, dtype, count, start)
        if kind == GGUFValueType.BOOL:
            if numbers.max(initial=0) > 1:
                i = int(np.argmax(numbers > 1))
                raise self.error(f"a bool is 0 or 1, not {numbers[i]}", start + i)
            numbers = numbers.astype(bool)
        return list(numbers.tolist())

    def strings(self, count: int) -> list[str]:
        """Read strings; bytes that are not UTF-8 become lone surrogates."""
        # This loop dominates loading a large vocabulary: 300 000 iterations.
        data, size, at = self.data, self.size, self.at
        texts = []
        for i in range(count):
            start = at + STRING_BYTES
            at = start + U64.unpack_from(data, at)[0] if start <= size else start
            if at > size:
                raise self.error(
                    f"the file ends within string {i} of {count}", start - STRING_BYTES
                )
            texts.append(str(data[start:at], "utf-8", "surrogateescape"))
        self.at = at
        return texts


def shown(name: str) -> str:
    """A name from a file, quoted and shortened for a one-line message."""
    return repr(name if len(name) <= SHOWN else name[:SHOWN] + "…")
