"""The base class of eviction policies, and their view of a block."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from numbers import Integral
from typing import Any

from engine.errors import ModelError
from engine.graph import Graph, Value
from reference.cache.policies import pyramid

ALL_TOKENS = 2**31 - 1  # tokens: all of a prompt


@dataclass(frozen=True, slots=True)
class Block:
    """A block to be scored: its name, its K cache, the text's `cells` in order [held], the
    attention that these have `received` from the observation window, float32 [kv_heads, held]
    (zeros if nothing is observed), and its number of KV heads."""

    name: str
    keys: Value
    cells: Value
    received: Value
    kv_heads: int


@dataclass(frozen=True, slots=True)
class Policy(ABC):
    """Eviction policy: of longer texts, each head of each block keeps `capacity` cells: the `first`
    and the `last` ones, and of the others those with the highest scores (of equals the earlier).
    The last `observers` tokens of a prompt are the observation window.

    With `beta`, `capacity` is the mean over blocks, as in PyramidKV: the last block keeps 1 / beta
    of the scored part, earlier blocks linearly more."""

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
        """Number of cells that each block keeps of a text of `held` cells."""
        if not self.by_block or held <= self.capacity:
            return [self.capacity] * blocks
        return pyramid(self.capacity, self.first + self.last, self.beta, blocks, held)

    @abstractmethod
    def scores(self, graph: Graph, block: Block) -> Value:
        """Append the nodes that score a block's cells; returns scores float32 [kv_heads, held]."""

    def __post_init__(self) -> None:
        """Raise `ModelError` for invalid or inconsistent numbers of cells."""
        name = type(self).__name__
        check_fields(self)
        if self.capacity < 1:
            raise ModelError(f"{name}: capacity is {self.capacity}: want at least 1")
        if self.first + self.last > self.capacity:
            always = self.first + self.last
            raise ModelError(
                f"{name}: capacity is {self.capacity}, but {always} cells are always kept: want at"
                " least as many"
            )


def check_fields(policy: Any) -> None:
    """Raise `ModelError` for fields that are neither texts nor integers from 0 up."""
    for number in fields(policy):
        value = getattr(policy, number.name)
        if number.type in (str, "str"):
            continue
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 0:
            name = type(policy).__name__
            raise ModelError(f"{name}: {number.name} is {value!r}: want a whole number from 0 up")
