"""SentencePiece's normalization map: `tokenizer.ggml.precompiled_charsmap`.

The bytes are a size n (uint32, little-endian), n bytes of a double array (Darts-clone, uint32
units), and zero-terminated replacements. The array is a byte trie: a unit has a label (bits 0 to
7), a flag for the end of a key (bit 8), and the offset of its children (bits 10 to 30, times 256
with bit 9). The child for byte c is at the unit's base XOR c; at the end of a key, the unit at the
base itself has bit 31 and the position of the replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

import numpy as np

from engine.tokenizer.vocab import TokenizerError, read_list

KEY: Final = "tokenizer.ggml.precompiled_charsmap"
_ENDS, _VALUE = 1 << 8, 1 << 31


class Charsmap:
    """The replacements; empty if the metadata has no such key."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._units, self._texts = [0], b""
        if KEY not in metadata:
            return
        numbers = read_list(metadata, "precompiled_charsmap", int)
        if not all(-128 <= number <= 255 for number in numbers):
            raise TokenizerError(f"{KEY}: its elements are not bytes")
        blob = bytes(number & 0xFF for number in numbers)
        size = int.from_bytes(blob[:4], "little")
        if size == 0 or size % 4 or 4 + size >= len(blob):
            raise TokenizerError(f"{KEY}: its {len(blob)} bytes are too few for its array")
        self._texts = blob[4 + size :]
        self._units = np.frombuffer(blob, "<u4", size // 4, offset=4).tolist()
        _check(self._units, self._texts)
        _check_ends(self._units)

    def longest(self, text: str, start: int) -> tuple[int, str] | None:
        """End and replacement of the longest key that begins at `start`."""
        units, found = self._units, None
        node = _offset(units[0])
        for at in range(start, len(text)):
            for byte in text[at].encode():
                node ^= byte
                if byte == 0 or node >= len(units) or units[node] & (_VALUE | 0xFF) != byte:
                    return found
                unit = units[node]
                node ^= _offset(unit)
            if unit & _ENDS:
                first = units[node] - _VALUE
                found = at + 1, self._texts[first : self._texts.index(b"\0", first)].decode()
        return found


def _offset(unit: int) -> int:
    return (unit & (_VALUE - 1)) >> 10 << ((unit & 0x200) >> 6)


def _check(units: list[int], texts: bytes) -> None:
    """Check that everything reachable exists: replacements of all keys, and their texts."""
    for i, unit in enumerate(units):
        if unit & _VALUE:
            place = unit - _VALUE
            if place >= len(texts) or texts[place] & 0xC0 == 0x80:
                raise TokenizerError(f"{KEY}: unit {i} points at no text of its {len(texts)} bytes")
        elif unit & _ENDS:
            value = i ^ _offset(unit)
            if value >= len(units) or not units[value] & _VALUE:
                raise TokenizerError(f"{KEY}: unit {i} ends a key that has no replacement")
    try:
        texts.decode()
    except UnicodeDecodeError:
        raise TokenizerError(f"{KEY}: a replacement is not valid UTF-8") from None
    if not texts.endswith(b"\0"):
        raise TokenizerError(f"{KEY}: its last replacement has no end")


def _check_ends(units: list[int]) -> None:
    """Check that the trie has no cycles."""
    children: dict[int, list[int]] = {}
    for i, unit in enumerate(units):
        if 0 < (label := unit & (_VALUE | 0xFF)) <= 0xFF:
            children.setdefault(i ^ label, []).append(i)
    graph: dict[int, list[int]] = {}
    waiting = [0]
    while waiting:
        node = waiting.pop()
        if node not in graph:
            graph[node] = children.get(node ^ _offset(units[node]), [])
            waiting += graph[node]
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise TokenizerError(f"{KEY}: unit {error.args[1][0]} is reached from itself") from None
