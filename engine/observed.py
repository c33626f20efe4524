"""What a model is seen to do: nodes that add up squares of what matrices meet, and nodes that count
the neurons of sparse feed-forward networks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.graph import Graph, Node, Value
from engine.models.feed_forward import LEAST

Sums = np.ndarray[Any, np.dtype[np.float64]]
Counts = np.ndarray[Any, np.dtype[np.int64]]


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


@dataclass(frozen=True, slots=True)
class Counted:
    """For how many tokens each neuron of a block was active so far, int64 [ffn] each: `predicted`,
    by the predictor's mask; `fired`, where relu leaves something; `hits`, both."""

    predicted: Counts
    fired: Counts
    hits: Counts

    def clear(self) -> None:
        for counts in (self.predicted, self.fired, self.hits):
            counts[:] = 0

    @property
    def recall(self) -> float:
        """Of the neurons that fire, the share that was predicted; NaN if none fires."""
        return _share(self.hits, self.fired)

    @property
    def precision(self) -> float:
        """Of the neurons that were predicted, the share that fires; NaN if none was."""
        return _share(self.hits, self.predicted)

    def active_share(self, tokens: int) -> float:
        """Of all neurons, the share that was predicted."""
        return float(self.predicted.sum()) / (tokens * len(self.predicted))


def _share(some: Counts, all_: Counts) -> float:
    return float(some.sum()) / float(all_.sum()) if all_.any() else float("nan")


def counting(graph: Graph) -> tuple[Graph, dict[str, Counted], dict[str, Counts]]:
    """The graph with nodes that count the neurons of every sparse block; what they count, by block;
    and the same arrays by their names in the graph.

    Which neurons fire is found by running them all.
    """
    found = Graph()
    arrays: dict[str, Counts] = {}
    blocks: dict[str, Counted] = {}

    def count(label: str, mask: Value) -> Counts:
        neurons = mask.dims[1]
        assert isinstance(neurons, int)
        arrays[label] = np.zeros(neurons, np.int64)
        total = Value(label, "cache", "i64", (neurons,))
        found("add_counts", label, out=total, mask=mask, before=total)
        return arrays[label]

    for node in graph.nodes:
        found.nodes.append(node)
        block = node.label.rpartition(".")[0]
        if node.op != "sparse_linear" or block in blocks:
            continue
        mask, out = node.arguments["mask"], node.arguments["out"]
        assert isinstance(mask, Value)
        every = found("threshold_mask", f"{block}.every", logits=out, threshold=-np.inf)
        rows, rest = found.several("active_rows", f"{block}.every_rows", mask=every)
        whole = found(
            "sparse_linear",
            f"{block}.every_out",
            x=node.arguments["x"],
            weight=node.arguments["weight"],
            mask=every,
            rows=rows,
            count=rest,
        )
        masks = [mask]
        for name, values in (("fired", whole), ("hits", out)):
            label = f"{block}.{name}"
            masks.append(found("threshold_mask", label, logits=values, threshold=LEAST))
        names = ("predicted", "fired", "hits")
        blocks[block] = Counted(
            *(count(f"{block}.{n}_counts", m) for n, m in zip(names, masks, strict=True))
        )
    return found, blocks, arrays
