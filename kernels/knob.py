"""Knobs: what of a kernel may be chosen without changing a bit. A share reads their values from its
argument `tuning`, so that one piece of machine code is tried, certified and run whatever they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.int64]]
Values = Mapping[str, int]  # of a kernel's knobs, by their names
NONE_CHOSEN: Values = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing to choose: the values that it may have, the one it has where nobody measured, what
    it is in words, and of how many tokens the steps are in which it shows; none, if it is not
    measured but begins, and stays, with what a table says of the family of CPUs.

    The value of a `crossover` is from how many tokens on another way of doing the same serves; 0,
    if it never does."""

    name: str
    values: tuple[int, ...]
    default: int
    what: str
    tokens: tuple[int, ...] = (1,)
    crossover: bool = False

    @property
    def others(self) -> tuple[int, ...]:
        """Its values but for the default."""
        return tuple(value for value in self.values if value != self.default)

    def alike(self, tokens: int) -> list[tuple[int, ...]]:
        """Its values, those together with which a step of so many tokens does the same."""
        if not self.crossover:
            return [(value,) for value in self.values]
        beyond = tuple(value for value in self.values if 0 < value <= tokens)
        before = tuple(value for value in self.values if value not in beyond)
        return [values for values in (before, beyond) if values]


def array_of(knobs: Sequence[Knob], values: Values) -> Array:
    """The values as a share's argument `tuning` has them; those not given are the defaults."""
    return np.array([values.get(knob.name, knob.default) for knob in knobs], np.int64)
