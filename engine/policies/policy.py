"""What a policy is, and what it is given of a block."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any

from engine.errors import ModelError
from engine.graph import Graph, Value
from reference.cache.policies import pyramid

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
    `observers` tokens of a prompt say by their attention what is wanted.

    Where `beta` is not 0 that is the mean of blocks: of what scores decide about the last block
    keeps 1 / beta, and those before it more and more, as PyramidKV has it."""

    capacity: int = 1024
    beta: int = field(default=0, kw_only=True)

    @property
    def first(self) -> int:
        return 0

    @property
    def last(self) -> int:
        return 0

    @property
    def observers(self) -> int:
        return 0

    @property
    def by_block(self) -> bool:
        """Whether blocks keep different numbers of cells."""
        return self.beta > 0

    def kept(self, blocks: int, held: int) -> list[int]:
        """How many cells each block keeps of a text of which it holds so many, if it does."""
        if not self.by_block or held <= self.capacity:
            return [self.capacity] * blocks
        return pyramid(self.capacity, self.first + self.last, self.beta, blocks, held)

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
    """Raise ModelError for a field of a policy that is no whole number from 0 up, nor a text."""
    for number in fields(policy):
        value = getattr(policy, number.name)
        if number.type in (str, "str"):
            continue
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 0:
            name = type(policy).__name__
            raise ModelError(f"{name}: {number.name} is {value!r}: want a whole number from 0 up")
