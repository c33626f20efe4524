"""Keys of a small norm receive the most attention (Devoto et al., arXiv 2406.11430)."""

from dataclasses import dataclass

from engine.graph import Graph, Value
from engine.policies.policy import Block, Policy


@dataclass(frozen=True, slots=True)
class Knorm(Policy):
    """`capacity` cells by their keys alone, wherever they stand."""

    def scores(self, graph: Graph, block: Block) -> Value:
        return graph(
            "knorm",
            f"{block.name}.knorm",
            k=block.keys,
            cells=block.cells,
            kv_heads=block.kv_heads,
        )
