"""What the matrices of a model meet: nodes that add up squares, put before those that multiply."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.graph import Graph, Node, Value

Sums = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Observed:
    """Sums of squares float64 [hidden] over all tokens so far: `sums` by what they are called in
    the graph, `weights` says which of them each weight meets."""

    sums: Mapping[str, Sums]
    weights: Mapping[str, str]

    def by_weight(self) -> dict[str, Sums]:
        return {weight: self.sums[name] for weight, name in self.weights.items()}


def observing(graph: Graph, wholes: Mapping[str, str]) -> tuple[Graph, Observed]:
    """The graph with a node before each linear layer, or the first of those that read the same.

    Layers that only some tokens reach, the output's, are left out. `wholes` are the tensors of the
    file by the weights that are rows of them.
    """
    nodes: list[Node] = []
    sums: dict[str, Sums] = {}
    weights: dict[str, str] = {}
    for node in graph.nodes:
        x, weight = node.arguments.get("x"), node.arguments.get("weight")
        if node.op == "linear" and isinstance(x, Value) and isinstance(weight, Value):
            tokens, hidden = x.dims
            if tokens == "tokens" and isinstance(hidden, int):
                name = f"{x.name}.squares"
                if name not in sums:
                    sums[name] = np.zeros(hidden)
                    total = Value(name, "cache", "f64", (hidden,))
                    nodes.append(
                        Node("add_squares", {"x": x, "before": total, "out": total}, label=name)
                    )
                weights[wholes.get(weight.name, weight.name)] = name
        nodes.append(node)
    return Graph(nodes), Observed(sums, weights)
