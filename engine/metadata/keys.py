"""Typed access to a GGUF file's metadata, with errors that name the key."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class Keys:
    """Typed access to the metadata under the architecture's prefix; `read` collects the keys that
    were accessed."""

    metadata: Mapping[str, Any]
    prefix: str
    read: set[str] = field(default_factory=set)

    def full(self, key: str) -> str:
        return f"{self.prefix}.{key}"

    def _get(self, key: str, default: Any) -> Any:
        self.read.add(self.full(key))
        value = self.metadata.get(self.full(key), default)
        if value is None:
            raise ModelError(f"{self.full(key)} is missing from the metadata")
        return value

    def agreed(self, key: str, default: int, least: int, without: Container[int]) -> int:
        """A count common to all blocks except `without`."""
        value = self._get(key, default)
        if isinstance(value, list) and without:
            kept = [one for i, one in enumerate(value) if i not in without] or [default]
            return replace(self, metadata={self.full(key): kept}).count(key, None, least)
        return self.count(key, default, least)

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self._get(key, default)
        if isinstance(value, list):  # one value per block: accepted while all agree
            if len(set(value)) != 1:
                raise ModelError(f"{self.full(key)} differs between blocks: not supported")
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
            raise ModelError(f"{self.full(key)} must be a count of at least {least}, got {value!r}")
        return value

    def counts(self, key: str, blocks: int) -> list[int]:
        """A count for each block: a list, or one common number."""
        value = self._get(key, None)
        if not isinstance(value, list):
            return [self.count(key)] * blocks
        if len(value) != blocks:
            raise ModelError(f"{self.full(key)} has {len(value)} values for {blocks} blocks")
        return [replace(self, metadata={self.full(key): one}).count(key) for one in value]

    def real(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not np.isfinite(value):
            raise ModelError(f"{self.full(key)} must be a finite number, got {value!r}")
        return float(value)

    def least(self, key: str, default: float | None) -> float:
        """A number that is at least 0; with default None it is 0, and the key is not read."""
        if default is None:
            return 0.0
        if (value := self.real(key, default)) < 0:
            raise ModelError(f"{self.full(key)} must be at least 0, got {value}")
        return value

    def flags(self, key: str, count: int) -> list[bool] | None:
        """A list of so many flags; None where the value is no such list."""
        value = self.metadata.get(self.full(key))
        if not isinstance(value, list) or not all(isinstance(one, bool) for one in value):
            return None
        if len(value) != count:
            raise ModelError(f"{self.full(key)} has {len(value)} values for {count} blocks")
        self.read.add(self.full(key))
        return value

    def one_of(self, key: str, meanings: Mapping[str, str]) -> str:
        """The meaning of a text; the first one if the key is missing."""
        value = self._get(key, next(iter(meanings)))
        if not isinstance(value, str) or value not in meanings:
            raise ModelError(f"{self.full(key)} is {value!r}: want {', '.join(meanings)}")
        return meanings[value]

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.full(key)} must be true or false, got {value!r}")
        return value

    def text(self, key: str, default: str) -> str:
        return str(self._get(key, default))
