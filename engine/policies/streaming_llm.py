"""StreamingLLM (Xiao et al., arXiv 2309.17453): keeps the first cells (attention sinks) and the
latest. Positions stay those in the text, as in kvpress; the paper counts cache slots."""

from dataclasses import dataclass

from engine.graph import Graph, Value
from engine.policies.policy import Block, Policy


@dataclass(frozen=True, slots=True)
class StreamingLLM(Policy):
    """Keeps `sinks` cells at the beginning of a text, and the rest of `capacity` at its end."""

    capacity: int = 516
    sinks: int = 4

    @property
    def first(self) -> int:
        return self.sinks

    @property
    def last(self) -> int:
        return max(0, self.capacity - self.sinks)

    def scores(self, graph: Graph, block: Block) -> Value:  # noqa: ARG002
        """Unused: only the ends are kept."""
        return block.received
