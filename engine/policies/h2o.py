"""H2O (Zhang et al., arXiv 2306.14048): keeps heavy hitters, the cells that received most attention
from all tokens so far, and the latest. Here attention is summed during prefill."""

from dataclasses import dataclass

from engine.graph import Graph, Value
from engine.policies.policy import ALL_TOKENS, Block, Policy


@dataclass(frozen=True, slots=True)
class H2O(Policy):
    """Keeps the last `recent` cells, and the rest of `capacity` by received attention."""

    recent: int = 512

    @property
    def last(self) -> int:
        return self.recent

    @property
    def observers(self) -> int:
        return ALL_TOKENS

    def scores(self, graph: Graph, block: Block) -> Value:  # noqa: ARG002
        return block.received
