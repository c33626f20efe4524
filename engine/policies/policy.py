"""What a policy is, and what it is given of a block."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any

from engine.errors import ModelError
from engine.graph import Graph, Value

EVERY = 2**31 - 1  # tokens: all of a prompt


@dataclass(frozen=True, slots=True)
class Block:
    """Of a block whose cells are scored: its name, its cache of keys, the text's `cells` in order
    [held], what these have `received` of the observing tokens' attention so far, float32 [kv_heads,
    held], or zeros where nothing is observed; and its heads of keys."""

    name: str
    keys: Value
    cells: Value
    received: Value
    kv_heads: int


@dataclass(frozen=True, slots=True)
class Policy(ABC):
    """Of a text that holds more, each head of each block keeps `capacity` cells: the `first` and
    the `last` ones, and of the others those that score highest, the earlier of equals. The last
    `observers` tokens of a prompt say by their attention what is wanted."""

    capacity: int = 1024

    @property
    def first(self) -> int:
        return 0

    @property
    def last(self) -> int:
        return 0

    @property
    def observers(self) -> int:
        return 0

    @abstractmethod
    def scores(self, graph: Graph, block: Block) -> Value:
        """What scores a block's cells, appended to a graph: float32 [kv_heads, held]."""

    def __post_init__(self) -> None:
        """Raise ModelError for what is no number of cells, or contradicts itself."""
        name = type(self).__name__
        demand_numbers(self)
        if self.capacity < 1:
            raise ModelError(f"{name}: capacity is {self.capacity}: want a cell at least")
        if self.first + self.last > self.capacity:
            always = self.first + self.last
            raise ModelError(
                f"{name}: capacity is {self.capacity}, and {always} cells are kept whatever they"
                " score: want no fewer"
            )


def demand_numbers(policy: Any) -> None:
    """Raise ModelError for a field of a policy that is no whole number from 0 up."""
    for field in fields(policy):
        value = getattr(policy, field.name)
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 0:
            raise ModelError(
                f"{type(policy).__name__}: {field.name} is {value!r}: want a whole number from 0 up"
            )
