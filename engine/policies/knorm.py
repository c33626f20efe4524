"""Knorm (Devoto et al., arXiv 2406.11430): small keys receive most attention."""

from dataclasses import dataclass

from engine.graph import Graph, Value
from engine.policies.policy import Block, Policy


@dataclass(frozen=True, slots=True)
class Knorm(Policy):
    """Keeps `capacity` cells by their keys alone, at any position."""

    def scores(self, graph: Graph, block: Block) -> Value:
        return graph(
            "knorm",
            f"{block.name}.knorm",
            k=block.keys,
            cells=block.cells,
            kv_heads=block.kv_heads,
        )
