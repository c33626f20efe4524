"""Which tokens a text has at a place: what all vocabularies that know no merges ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import AnyStr, Generic, TypeVar

_V = TypeVar("_V")


class Matches(Generic[AnyStr, _V]):
    """Values by text or by bytes, found wherever these begin; none of them is empty.

    Of each first character the lengths that occur are known, so that a place costs as many look-ups
    as there are lengths, and no trie has to be built.
    """

    def __init__(self, values: Mapping[AnyStr, _V]) -> None:
        self._values: Mapping[AnyStr, _V] = values
        lengths: dict[AnyStr, set[int]] = {}
        for text in values:
            lengths.setdefault(text[:1], set()).add(len(text))
        self._lengths: Mapping[AnyStr, list[int]] = {
            first: sorted(found, reverse=True) for first, found in lengths.items()
        }

    def at(self, text: AnyStr, start: int) -> Iterator[tuple[int, _V]]:
        """Lengths and values of all that begin at `start`, longest first."""
        for length in self._lengths.get(text[start : start + 1], ()):
            piece = text[start : start + length]
            if len(piece) == length and piece in self._values:
                yield length, self._values[piece]
