"""Keys of a small norm receive the most attention (Devoto et al., arXiv 2406.11430)."""

from dataclasses import dataclass

from engine.graph import Graph, Value
from engine.policies.policy import Block, checked


@dataclass(frozen=True, slots=True)
class Knorm:
    """`capacity` cells by their keys alone, wherever they stand."""

    capacity: int = 1024

    def __post_init__(self) -> None:
        checked(self)

    @property
    def first(self) -> int:
        return 0

    @property
    def last(self) -> int:
        return 0

    @property
    def observers(self) -> int:
        return 0

    def scores(self, graph: Graph, block: Block) -> Value:
        return graph(
            "knorm",
            f"{block.name}.knorm",
            k=block.keys,
            cells=block.cells,
            kv_heads=block.kv_heads,
        )
