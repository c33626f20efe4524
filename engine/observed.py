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


COUNTED = ("predicted", "fired", "hits")


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
    first: dict[str, str] = {}  # of a block's weights, gate or else up
    counts: dict[str, list[Value]] = {}

    def count(total: Value, label: str, mask: Value) -> None:
        found("add_counts", label, out=total, mask=mask, before=total)

    for node in graph.nodes:
        found.nodes.append(node)
        if node.op != "sparse_linear":
            continue
        weight, mask, out = (node.arguments[name] for name in ("weight", "mask", "out"))
        assert isinstance(weight, Value)
        assert isinstance(mask, Value)
        assert isinstance(out, Value)
        block = ".".join(weight.name.split(".")[:2])
        whole = block not in blocks
        if whole:
            first[block], neurons = weight.name, mask.dims[1]
            assert isinstance(neurons, int)
            totals = [Value(f"{block}.{n}", "cache", "i64", (neurons,)) for n in COUNTED]
            arrays |= {total.name: np.zeros(neurons, np.int64) for total in totals}
            blocks[block] = Counted(*(arrays[total.name] for total in totals))
            counts[block] = totals
        if weight.name != first[block]:
            continue
        predicted, fired, hits = counts[block]
        count(predicted, f"{node.label}.predicted", mask)  # of each part, where they are split
        hit = found("threshold_mask", f"{node.label}.hit", logits=out, threshold=LEAST)
        count(hits, f"{node.label}.hits", hit)
        if whole:
            every = found("threshold_mask", f"{block}.every", logits=out, threshold=-np.inf)
            rows, rest = found.several("active_rows", f"{block}.every_rows", mask=every)
            values = found(
                "sparse_linear",
                f"{block}.every_out",
                x=node.arguments["x"],
                weight=weight,
                mask=every,
                rows=rows,
                count=rest,
                slots=node.arguments["slots"],
            )
            fires = found("threshold_mask", f"{block}.fires", logits=values, threshold=LEAST)
            count(fired, f"{block}.fired_counts", fires)
    return found, blocks, arrays
