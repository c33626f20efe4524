"""KeyDiff (Park et al., arXiv 2504.15364): keeps the keys least similar to the mean direction."""

from dataclasses import dataclass

from engine.graph import Graph, Value
from engine.policies.policy import Block, Policy


@dataclass(frozen=True, slots=True)
class KeyDiff(Policy):
    """Keeps `capacity` cells by their keys alone, at any position."""

    def scores(self, graph: Graph, block: Block) -> Value:
        return graph(
            "keydiff",
            f"{block.name}.keydiff",
            k=block.keys,
            cells=block.cells,
            kv_heads=block.kv_heads,
        )
