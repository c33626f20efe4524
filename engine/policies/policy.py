"""What a policy is, and what it is given of a block."""

from dataclasses import dataclass, fields
from numbers import Integral
from typing import Protocol

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


class Policy(Protocol):
    """Of a text that holds more, each head of each block keeps `capacity` cells: the `first` and
    the `last` ones, and of the others those that score highest, the earlier of equals. The last
    `observers` tokens of a prompt say by their attention what is wanted."""

    @property
    def capacity(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> int: ...

    @property
    def observers(self) -> int: ...

    def scores(self, graph: Graph, block: Block) -> Value:
        """What scores a block's cells, appended to a graph: float32 [kv_heads, held]."""


def checked(policy: Policy) -> None:
    """Raise ModelError for what is no number of cells, or contradicts itself."""
    name = type(policy).__name__
    for field in fields(policy):  # type: ignore[arg-type]
        value = getattr(policy, field.name)
        if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 0:
            raise ModelError(f"{name}: {field.name} is {value!r}: want a whole number from 0 up")
    if policy.capacity < 1:
        raise ModelError(f"{name}: capacity is {policy.capacity}: want a cell at least")
    if policy.first + policy.last > policy.capacity:
        always = policy.first + policy.last
        raise ModelError(
            f"{name}: capacity is {policy.capacity}, and {always} cells are kept whatever they"
            " score: want no fewer"
        )
