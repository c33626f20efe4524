"""config.json's values, checked: an invalid one is reported in one plain line that names it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.convert.json_files import CheckpointError


@dataclass(frozen=True, slots=True)
class Fields:
    """The values of one JSON object; null counts as missing, and as a flag is false, as for
    transformers. `place` locates the object in messages."""

    values: Mapping[str, Any]
    place: str

    def error(self, fault: str) -> CheckpointError:
        return CheckpointError(f"{self.place}: {fault}")

    def get(self, name: str, default: Any = None) -> Any:
        """The value, unchecked."""
        value = self.values.get(name)
        return default if value is None else value

    def count(self, name: str, default: int | None = None) -> int:
        value = self._wanted(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            raise self.error(f"{name} must be a count of at least 1, got {value!r}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self._wanted(name, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
        raise self.error(f"{name} must be a finite number, got {value!r}")

    def flag(self, name: str, default: bool) -> bool:
        value = self.values.get(name, default)
        if not isinstance(value, bool | None):
            raise self.error(f"{name} must be true or false, got {value!r}")
        return bool(value)

    def kinds(self, known: Sequence[str], usual: list[str]) -> list[str]:
        """The kind of each layer, one of those known; without `layer_types` the usual ones."""
        found = self.get("layer_types", usual)
        fits = isinstance(found, list) and len(found) == len(usual)
        if not fits or any(kind not in known for kind in found):
            words = ", ".join(known)
            raise self.error(f"layer_types: want {len(usual)} of {words}, got {found!r:.80}")
        return list(found)

    def part(self, name: str) -> "Fields":
        """An object within this one; empty where it is missing."""
        value = self.get(name, {})
        if not isinstance(value, dict):
            raise self.error(f"{name} must be an object, got {value!r}")
        return Fields(value, f"{self.place}: {name}")

    def _wanted(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing")
        return value
