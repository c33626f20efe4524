"""StreamingLLM (Xiao et al., arXiv 2309.17453): the first cells, on which attention rests, and the
latest. Positions are those that tokens have in the text, as in kvpress; the paper counts slots."""

from dataclasses import dataclass

from engine.graph import Graph, Value
from engine.policies.policy import Block, checked


@dataclass(frozen=True, slots=True)
class StreamingLLM:
    """`sinks` cells at the beginning of a text, and the rest of `capacity` at its end."""

    capacity: int = 516
    sinks: int = 4

    def __post_init__(self) -> None:
        checked(self)

    @property
    def first(self) -> int:
        return self.sinks

    @property
    def last(self) -> int:
        return max(0, self.capacity - self.sinks)

    @property
    def observers(self) -> int:
        return 0

    def scores(self, graph: Graph, block: Block) -> Value:  # noqa: ARG002
        """Nothing: the ends are all that is kept."""
        return block.received
