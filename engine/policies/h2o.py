"""H2O (Zhang et al., arXiv 2306.14048): the heavy hitters, cells that received most attention of
all tokens so far, and the latest. Here they are counted while the prompt is read."""

from dataclasses import dataclass

from engine.graph import Graph, Value
from engine.policies.policy import EVERY, Block, checked


@dataclass(frozen=True, slots=True)
class H2O:
    """The last `recent` cells, and the rest of `capacity` by what they received."""

    capacity: int = 1024
    recent: int = 512

    def __post_init__(self) -> None:
        checked(self)

    @property
    def first(self) -> int:
        return 0

    @property
    def last(self) -> int:
        return self.recent

    @property
    def observers(self) -> int:
        return EVERY

    def scores(self, graph: Graph, block: Block) -> Value:  # noqa: ARG002
        return block.received
