"""What a model is seen to do: nodes that add up squares of what matrices meet, and nodes that count
the neurons of sparse feed-forward networks."""

from collections.abc import Iterator, Mapping
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


PREDICTED = "predicted"
COUNTED = (PREDICTED, "fired", "hits")


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
    for node, block in _with_blocks(graph):
        found.nodes.append(node)
        if not block:
            continue
        weight, mask, out = (node.arguments[name] for name in ("weight", "mask", "out"))
        assert isinstance(mask, Value)
        predicted, fired, hits = (_total(block, name, mask, arrays) for name in COUNTED)
        _count(found, predicted, f"{node.label}.predicted", mask)
        hit = found("threshold_mask", f"{node.label}.hit", logits=out, threshold=LEAST)
        _count(found, hits, f"{node.label}.hits", hit)
        if block not in blocks:
            blocks[block] = Counted(*(arrays[total.name] for total in (predicted, fired, hits)))
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
            _count(found, fired, f"{block}.fired_counts", fires)
    return found, blocks, arrays


def counting_predicted(graph: Graph) -> tuple[Graph, dict[str, Counts]]:
    """The graph with nodes that count only what predictors name, and blk.{i}.predicted by name."""
    found = Graph()
    arrays: dict[str, Counts] = {}
    for node, block in _with_blocks(graph):
        found.nodes.append(node)
        if block:
            mask = node.arguments["mask"]
            assert isinstance(mask, Value)
            total = _total(block, PREDICTED, mask, arrays)
            _count(found, total, f"{node.label}.{PREDICTED}", mask)
    return found, arrays


def _with_blocks(graph: Graph) -> Iterator[tuple[Node, str]]:
    """The nodes; with one that reads rows of a sparse block's first matrix, gate or else up, the
    block. Where neurons are split there are several, each of its part."""
    first: dict[str, str] = {}
    for node in graph.nodes:
        weight, block = node.arguments.get("weight"), ""
        if node.op == "sparse_linear" and isinstance(weight, Value):
            own = ".".join(weight.name.split(".")[:2])
            block = own if first.setdefault(own, weight.name) == weight.name else ""
        yield node, block


def _total(block: str, name: str, mask: Value, arrays: dict[str, Counts]) -> Value:
    """Counts of a block's neurons, which `arrays` has from then on."""
    neurons = mask.dims[1]
    assert isinstance(neurons, int)
    total = Value(f"{block}.{name}", "cache", "i64", (neurons,))
    arrays.setdefault(total.name, np.zeros(neurons, np.int64))
    return total


def _count(graph: Graph, total: Value, label: str, mask: Value) -> None:
    graph("add_counts", label, out=total, mask=mask, before=total)
