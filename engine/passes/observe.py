"""Nodes that add up the squares of what matrices meet, for importance matrices."""

from typing import TYPE_CHECKING, Any

import numpy as np

from engine.graph import Graph, Node, Value
from engine.models.table import FAMILIES
from engine.passes import Memory

if TYPE_CHECKING:
    from engine.model import Model

Sums = np.ndarray[Any, np.dtype[np.float64]]


def observe(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
    """The graph with a node before each linear layer, or the first of those that read the same; its
    sums of squares, float64 [hidden] over all tokens so far, are memory.

    Layers that only some tokens reach, the output's, are left out.
    """
    nodes: list[Node] = []
    sums: Memory = {}
    for node in graph.nodes:
        if (x := _observed(node)) and (name := _sum_of(x)) not in sums:
            (_, hidden) = x.dims
            assert isinstance(hidden, int)
            sums[name] = np.zeros(hidden)
            total = Value(name, "cache", "f64", (hidden,))
            arguments = {"x": x, "before": total, "out": total}
            nodes.append(Node("add_squares", arguments, label=name))
        nodes.append(node)
    return Graph(nodes), memory | sums


def sums_by_weight(model: "Model") -> dict[str, Sums]:
    """Of a model that was loaded with `observe`, what each matrix of its file has met."""
    rows = FAMILIES[model.config.architecture].parts(model.config)
    found: dict[str, Sums] = {}
    for node in model.graph.nodes:
        weight = node.arguments.get("weight")
        if (x := _observed(node)) and isinstance(weight, Value):
            part = rows.get(weight.name)
            found[part.tensor if part else weight.name] = model.memory[_sum_of(x)]
    return found


def _observed(node: Node) -> Value | None:
    """What a linear layer reads of every token."""
    x = node.arguments.get("x")
    if node.op == "linear" and isinstance(x, Value) and x.dims[0] == "tokens":
        return x
    return None


def _sum_of(x: Value) -> str:
    return f"{x.name}.squares"
