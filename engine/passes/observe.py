"""A pass that sums squares of matrices' inputs, for importance matrices."""

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
OURS = ".squares", ".met"  # suffixes of sums and counts in a model's memory


@dataclass(frozen=True, slots=True)
class Observed:
    """A matrix's inputs so far: sums of squares, float64 [hidden]; for experts [experts, hidden],
    with `counts`, int64 [experts], of tokens each has received. Per-head matrices, which all
    receive every token, have [heads * hidden]."""

    sums: Sums
    counts: Counts | None = None

    def __add__(self, other: "Observed") -> "Observed":
        counts = None if self.counts is None or other.counts is None else self.counts + other.counts
        return Observed(self.sums + other.sums, counts)


def observe(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
    """The graph with a node before each linear layer (also of experts), or before the first of
    those with the same input; sums of squares in float64 over all tokens so far and the experts'
    token counts are memory.

    Layers that only some tokens reach, such as the output layer, are left out.
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
    """For a model loaded with `observe`, the statistics of each matrix of its file."""
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
    """The contribution of one passage alone to each matrix. Passages are added in order, so that
    the sums have the same bits whoever reads which."""
    model = engine.model
    for name, array in model.memory.items():
        if name.endswith(OURS):
            array[...] = 0
    engine.reset()
    model.evaluate(passage.tokens, 0)
    copies: dict[tuple[int, bool], Observed] = {}  # matrices with the same input share one
    found = {}
    for name, one in observed(model).items():
        where = int(one.sums.ctypes.data), one.counts is None
        if where not in copies:
            counts = None if one.counts is None else one.counts.copy()
            copies[where] = Observed(one.sums.copy(), counts)
        found[name] = copies[where]
    return found


def joined(before: dict[str, Observed], more: dict[str, Observed]) -> dict[str, Observed]:
    """Earlier statistics plus those of one more passage."""
    return {name: before[name] + one for name, one in more.items()} if before else more


def _observed(node: Node) -> Value | None:
    """The input of a linear layer over all tokens, or over the tokens of each of its experts."""
    x = node.arguments.get("x")
    if not isinstance(x, Value):
        return None
    every = node.op == "linear" and x.dims[0] == "tokens"
    return x if every or node.op == "linear_experts" else None


def _sum_of(x: Value) -> str:
    return x.name + OURS[0]


def _count_of(x: Value) -> str:
    return x.name + OURS[1]
