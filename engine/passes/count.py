"""A pass that counts active neurons of sparse feed-forward networks."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.graph import Graph, Node, Value
from engine.passes import Memory
from engine.passes.sparse import LEAST

Counts = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Counted:
    """For how many tokens each neuron of a block was active so far, int64 [ffn] each: `predicted`
    by the predictor's mask; `fired`, where relu's output is positive; `hits`, both."""

    predicted: Counts
    fired: Counts
    hits: Counts

    def clear(self) -> None:
        for counts in (self.predicted, self.fired, self.hits):
            counts[:] = 0

    @property
    def recall(self) -> float:
        """Share of firing neurons that were predicted; NaN if none fires."""
        return _share(self.hits, self.fired)

    @property
    def precision(self) -> float:
        """Share of predicted neurons that fire; NaN if none was predicted."""
        return _share(self.hits, self.predicted)

    def active_share(self, tokens: int) -> float:
        """Share of all neurons that were predicted."""
        return float(self.predicted.sum()) / (tokens * len(self.predicted))


PREDICTED = "predicted"
COUNTED = (PREDICTED, "fired", "hits")


def _share(some: Counts, all_: Counts) -> float:
    return float(some.sum()) / float(all_.sum()) if all_.any() else float("nan")


def count_neurons(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
    """The graph with counting nodes in every sparse block, read by `neuron_counts`. All neurons
    run, to find out which fire."""
    found, counts, seen = Graph(), Memory(), set[str]()
    for node, block in _with_blocks(graph):
        found.nodes.append(node)
        if not block:
            continue
        weight, mask, out = (node.value(name) for name in ("weight", "mask", "out"))
        predicted, fired, hits = (_total(block, name, mask, counts) for name in COUNTED)
        _count(found, predicted, f"{node.label}.predicted", mask)
        hit = found("threshold_mask", f"{node.label}.hit", logits=out, threshold=LEAST)
        _count(found, hits, f"{node.label}.hits", hit)
        if block not in seen:
            seen.add(block)
            every = found("threshold_mask", f"{block}.every", logits=out, threshold=-np.inf)
            rows, rest = found.multi_output("active_rows", f"{block}.every_rows", mask=every)
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
    return found, memory | counts


def count_predicted(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
    """The graph with nodes that count only predicted neurons, as blk.{i}.predicted."""
    found, counts = Graph(), Memory()
    for node, block in _with_blocks(graph):
        found.nodes.append(node)
        if block:
            mask = node.value("mask")
            total = _total(block, PREDICTED, mask, counts)
            _count(found, total, f"{node.label}.{PREDICTED}", mask)
    return found, memory | counts


def neuron_counts(memory: Memory) -> dict[str, Counted]:
    """The counts of `count_neurons` so far, by block."""
    blocks = [name.removesuffix(f".{PREDICTED}") for name in memory if name.endswith(PREDICTED)]
    return {block: Counted(*(memory[f"{block}.{name}"] for name in COUNTED)) for block in blocks}


def _with_blocks(graph: Graph) -> Iterator[tuple[Node, str]]:
    """The nodes, each with the block whose first sparse matrix (gate or else up) it reads. Where
    neurons are split there are several, one for each part."""
    first: dict[str, str] = {}
    for node in graph.nodes:
        weight, block = node.arguments.get("weight"), ""
        if node.op == "sparse_linear" and isinstance(weight, Value):
            own = ".".join(weight.name.split(".")[:2])
            block = own if first.setdefault(own, weight.name) == weight.name else ""
        yield node, block


def _total(block: str, name: str, mask: Value, memory: Memory) -> Value:
    """Counts of a block's neurons, kept in `memory` from now on."""
    neurons = mask.fixed(1)
    total = Value(f"{block}.{name}", "cache", "i64", (neurons,))
    memory.setdefault(total.name, np.zeros(neurons, np.int64))
    return total


def _count(graph: Graph, total: Value, label: str, mask: Value) -> None:
    graph("add_counts", label, out=total, mask=mask, before=total)
