"""Keys unlike the mean of all directions are kept (Park et al., arXiv 2504.15364)."""

from dataclasses import dataclass

from engine.graph import Graph, Value
from engine.policies.policy import Block, Policy


@dataclass(frozen=True, slots=True)
class KeyDiff(Policy):
    """`capacity` cells by their keys alone, wherever they stand."""

    def scores(self, graph: Graph, block: Block) -> Value:
        return graph(
            "keydiff",
            f"{block.name}.keydiff",
            k=block.keys,
            cells=block.cells,
            kv_heads=block.kv_heads,
        )
