"""StreamingLLM (Xiao et al., arXiv 2309.17453): the first cells, on which attention rests, and the
latest. Positions are those that tokens have in the text, as in kvpress; the paper counts slots."""

from dataclasses import dataclass

from engine.graph import Graph, Value
from engine.policies.policy import Block, Policy


@dataclass(frozen=True, slots=True)
class StreamingLLM(Policy):
    """`sinks` cells at the beginning of a text, and the rest of `capacity` at its end."""

    capacity: int = 516
    sinks: int = 4

    @property
    def first(self) -> int:
        return self.sinks

    @property
    def last(self) -> int:
        return max(0, self.capacity - self.sinks)

    def scores(self, graph: Graph, block: Block) -> Value:  # noqa: ARG002
        """Nothing: the ends are all that is kept."""
        return block.received
