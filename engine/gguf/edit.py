"""Edits a GGUF file's keys: writes a new file with other metadata and the same tensors."""

import difflib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGUFValueType

from engine.gguf.cursor import NUMBERS, ValueType, shown
from engine.gguf.file import ALIGNMENT, Bytes, GGUFError, GGUFFile, TensorInfo
from engine.gguf.tensor_reader import TensorReader
from engine.gguf.writer import Keys, NewTensor, write_gguf
from engine.progress import ProgressCallback


def keys_of(file: GGUFFile) -> dict[str, tuple[ValueType, Any]]:
    """The file's keys with their types, ready to be written."""
    return {key: (file.value_types[key], value) for key, value in file.metadata.items()}


def edited(keys: Keys, settings: Sequence[str], removed: Sequence[str]) -> Keys:
    """The keys after `KEY=VALUE` settings, then removals.

    An existing key keeps its type and its place; `KEY:TYPE=VALUE` gives a type, which a new key
    requires. Arrays are written as JSON. Raises `GGUFError`.
    """
    result = dict(keys)
    for setting in settings:
        key, kind, text = _parsed(setting, result)
        result[key] = kind, _value(key, kind, text)
    for key in removed:
        if key not in result:
            raise _unknown(key, result)
        del result[key]
    _check_alignment(result)
    return result


def rewrite(
    file: GGUFFile, keys: Keys, out: Path, progress: ProgressCallback | None = None
) -> None:
    """Write the file's tensors, byte for byte, under other keys."""

    def pieces(reader: TensorReader) -> Iterator[Bytes]:
        for tensor in file.tensors.values():
            yield from reader.rows(tensor)

    write_from(file, out, keys, [copied(t) for t in file.tensors.values()], pieces, progress)


def copied(tensor: TensorInfo) -> NewTensor:
    """The same tensor for another file."""
    return NewTensor(tensor.name, tensor.type_name, tensor.dims)


def write_from(
    file: GGUFFile,
    out: Path,
    keys: Keys,
    tensors: Sequence[NewTensor],
    pieces: Callable[[TensorReader], Iterator[Bytes]],
    progress: ProgressCallback | None = None,
    magic: str = "",
) -> None:
    """Write a file of the same version, and of the same magic unless another is given, whose
    tensors' bytes derive from this file's.

    `pieces` are as for `write_gguf`, `progress` receives bytes written and in total. Raises
    `OutputError`, and `GGUFError` where the file changes meanwhile, and then leaves nothing.
    """

    def checked() -> Iterator[Bytes]:
        with TensorReader(file) as reader:
            yield from pieces(reader)
            reader.check()

    write_gguf(
        out, keys, tensors, checked(), magic=magic or file.magic, version=file.version,
        reads=file.path, progress=progress,
    )  # fmt: skip


def _parsed(setting: str, keys: Keys) -> tuple[str, ValueType, str]:
    """KEY=VALUE or KEY:TYPE=VALUE, as key, type and value."""
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise GGUFError(f"{setting!r} is no setting: want KEY=VALUE or KEY:TYPE=VALUE")
    if key in keys:
        return key, keys[key][0], text
    name, colon, kind = key.rpartition(":")
    if not colon:
        raise _unknown(key, keys, f"; to add it, say its type, as in {key}:uint32={text}")
    return name, _type(kind), text


def _type(name: str) -> ValueType:
    """The type named "uint32", "string" or, for an array, "[string]"."""
    array = name.startswith("[") and name.endswith("]")
    try:
        kind = GGUFValueType[name.strip("[]").upper()]
    except KeyError:
        kind = GGUFValueType.ARRAY
    if kind == GGUFValueType.ARRAY:
        known = ", ".join(k.name.lower() for k in GGUFValueType if k != GGUFValueType.ARRAY)
        raise GGUFError(f"there is no type {name!r}: want one of {known}, or an array as [string]")
    return ValueType(GGUFValueType.ARRAY, kind) if array else ValueType(kind, None)


def _value(key: str, kind: ValueType, text: str) -> Any:
    """Parse a value of that type. Raises `GGUFError`."""
    if kind.element is None:
        return text if kind.kind == GGUFValueType.STRING else _number(key, kind.kind, _json(text))
    values = _json(text)
    if not isinstance(values, list):
        raise GGUFError(f"key {shown(key)}: {text!r} is no JSON array")
    if kind.element != GGUFValueType.STRING:
        return [_number(key, kind.element, value) for value in values]
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise GGUFError(f"key {shown(key)}: {wrong[0]!r} is no text")
    return values


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _number(key: str, kind: GGUFValueType, value: Any) -> Any:
    """A number or truth value in the type's range."""
    dtype = NUMBERS[kind]
    if kind == GGUFValueType.BOOL:
        fits = isinstance(value, bool)
    elif isinstance(value, bool):
        fits = False
    elif dtype.kind == "f":
        fits = isinstance(value, int | float)
    else:
        limits = np.iinfo(dtype)
        fits = isinstance(value, int) and limits.min <= value <= limits.max
    if not fits:
        raise GGUFError(f"key {shown(key)}: the value is no {kind.name.lower()}")
    return value


def _unknown(key: str, keys: Keys, advice: str = "") -> GGUFError:
    close = difflib.get_close_matches(key, keys, 1)
    guess = f" (perhaps {shown(close[0])}?)" if close else ""
    return GGUFError(f"there is no key {shown(key)}{guess}{advice}")


def _check_alignment(keys: Keys) -> None:
    kind, value = keys.get(ALIGNMENT, (ValueType(GGUFValueType.UINT32, None), 32))
    if kind.kind != GGUFValueType.UINT32 or value.bit_count() != 1:
        raise GGUFError(f"key {shown(ALIGNMENT)}: it must be a uint32 that is a power of two")
