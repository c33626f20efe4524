"""Constants that a kernel's functions and grids share: CUDA includes them as config.cuh, Python's
grids read them by their names, and a few are knobs, which a tuner may choose on a GPU."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from kernels.knob import Knob, Values

HEADER = "config.cuh"


def constant(name: str, value: int, what: str) -> Knob:
    """A knob with one position."""
    return Knob(name, (value,), value, what)


def fixed(constants: Iterable[Knob]) -> tuple[Knob, ...]:
    """The same with their defaults alone."""
    return tuple(constant(one.name, one.default, one.what) for one in constants)


@dataclass(frozen=True)
class Config:
    """A kernel's constants, by the names that they have in CUDA, and what is `chosen` of them
    instead of their defaults: (name, value). No choice changes a bit of what the kernel gives.
    Where there are knobs, a launch's grid gets the Config beside the sizes."""

    constants: tuple[Knob, ...] = ()
    chosen: tuple[tuple[str, int], ...] = ()

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    @cached_property  # a step of other sizes asks each launch's grid
    def _values(self) -> dict[str, int]:
        return {one.name: one.default for one in self.constants} | dict(self.chosen)

    @cached_property
    def knobs(self) -> tuple[Knob, ...]:
        """Those that may have several values."""
        return tuple(constant for constant in self.constants if len(constant.values) > 1)

    @property
    def header(self) -> str:
        """The text of config.cuh."""
        lines = (f"constexpr int {c.name} = {self[c.name]};  // {c.what}" for c in self.constants)
        return "\n".join(("#pragma once", *lines, ""))

    def choosing(self, values: Values) -> "Config":
        """The same with these values of its own knobs; ValueError for one that a knob lacks."""
        own = {knob.name: knob for knob in self.knobs if knob.name in values}
        for name, knob in own.items():
            if values[name] not in knob.values:
                raise ValueError(f"{name} is one of {knob.values}, got {values[name]}")
        chosen = dict(self.chosen) | {name: values[name] for name in own}
        return replace(self, chosen=tuple(sorted(chosen.items())))


NO_CONSTANTS = Config()
