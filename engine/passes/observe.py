"""Nodes that add up the squares of what matrices meet, for importance matrices."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.graph import Graph, Node, Value
from engine.models.table import parts_of
from engine.passes import Memory

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.model import Model
    from engine.perplexity import Passage

Sums = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]
OURS = ".squares", ".met"  # how names of sums and counts in a model's memory end


@dataclass(frozen=True, slots=True)
class Observed:
    """What a matrix has met so far: sums of squares, float64 [hidden]; or of experts [experts,
    hidden], with `counts`, int64 [experts], of the tokens that each has met. Heads, all of which
    meet every token, have [heads * hidden]."""

    sums: Sums
    counts: Counts | None = None

    def __add__(self, other: "Observed") -> "Observed":
        counts = None if self.counts is None or other.counts is None else self.counts + other.counts
        return Observed(self.sums + other.sums, counts)


def observe(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
    """The graph with a node before each linear layer, also of experts, or the first of those that
    read the same; its sums of squares over all tokens so far, float64, and the tokens that experts
    have met are memory.

    Layers that only some tokens reach, the output's, are left out.
    """
    nodes: list[Node] = []
    sums: Memory = {}
    for node in graph.nodes:
        if (x := _observed(node)) and (name := _sum_of(x)) not in sums:
            hidden, ends = x.fixed(1), node.arguments.get("ends")
            dims = (*ends.dims, hidden) if isinstance(ends, Value) else (hidden,)
            sums[name] = np.zeros(tuple(map(int, dims)))
            total = Value(name, "cache", "f64", dims)
            arguments: dict[str, Value | float] = {"x": x, "before": total, "out": total}
            if isinstance(ends, Value):
                count = Value(_count_of(x), "cache", "i64", ends.dims)
                sums[count.name] = np.zeros(sums[name].shape[0], np.int64)
                arguments |= {"ends": ends, "met": count, "counts": count}
            op = "add_squares_by_expert" if isinstance(ends, Value) else "add_squares"
            nodes.append(Node(op, arguments, label=name))
        nodes.append(node)
    return Graph(nodes), memory | sums


def observed(model: "Model") -> dict[str, Observed]:
    """Of a model that was loaded with `observe`, what each matrix of its file has met."""
    rows, nodes = parts_of(model.config), model.graph.nodes
    routed = [node.arguments["ends"] for node in nodes if node.op == "sort_by_expert"]
    found: dict[str, Observed] = {}
    for node in nodes:
        weight = node.arguments.get("weight")
        if (x := _observed(node)) and isinstance(weight, Value):
            part, sums = rows.get(weight.name), model.memory[_sum_of(x)]
            chosen = node.arguments.get("ends") in routed
            counts = model.memory[_count_of(x)] if chosen else None
            met = Observed(sums if chosen else sums.reshape(-1), counts)
            found[part.tensor if part else weight.name] = met
    return found


def met(engine: "Engine", passage: "Passage") -> dict[str, Observed]:
    """What a passage alone brings to each matrix. Passages are added up in their order, so that the
    sums are the same bits whoever reads which."""
    model = engine.model
    for name, array in model.memory.items():
        if name.endswith(OURS):
            array[...] = 0
    engine.reset()
    model.evaluate(passage.tokens, 0)
    copies: dict[tuple[int, bool], Observed] = {}  # matrices that read the same share one
    found = {}
    for name, one in observed(model).items():
        where = int(one.sums.ctypes.data), one.counts is None
        if where not in copies:
            counts = None if one.counts is None else one.counts.copy()
            copies[where] = Observed(one.sums.copy(), counts)
        found[name] = copies[where]
    return found


def joined(before: dict[str, Observed], more: dict[str, Observed]) -> dict[str, Observed]:
    """What was met before, and by one more passage."""
    return {name: before[name] + one for name, one in more.items()} if before else more


def _observed(node: Node) -> Value | None:
    """What a linear layer reads of every token, or of every token for each of its experts."""
    x = node.arguments.get("x")
    if not isinstance(x, Value):
        return None
    every = node.op == "linear" and x.dims[0] == "tokens"
    return x if every or node.op == "linear_experts" else None


def _sum_of(x: Value) -> str:
    return x.name + OURS[0]


def _count_of(x: Value) -> str:
    return x.name + OURS[1]
