"""Lookup of tokens at a position of a text, for models without merges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import AnyStr, Generic, TypeVar

_V = TypeVar("_V")


class Matches(Generic[AnyStr, _V]):
    """Values by text or bytes (non-empty), found wherever these begin.

    For each first character the lengths that occur are stored, so that a lookup costs one hash per
    length, and no trie is needed.
    """

    def __init__(self, values: Mapping[AnyStr, _V]) -> None:
        self._values: Mapping[AnyStr, _V] = values
        lengths: dict[AnyStr, set[int]] = {}
        for text in values:
            lengths.setdefault(text[:1], set()).add(len(text))
        self._lengths: Mapping[AnyStr, list[int]] = {
            first: sorted(found, reverse=True) for first, found in lengths.items()
        }

    def starting_at(self, text: AnyStr, start: int) -> Iterator[tuple[int, _V]]:
        """Lengths and values of all matches at `start`, longest first."""
        for length in self._lengths.get(text[start : start + 1], ()):
            piece = text[start : start + length]
            if len(piece) == length and piece in self._values:
                yield length, self._values[piece]
