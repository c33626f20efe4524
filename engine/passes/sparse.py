"""Feed-forward networks that run only the neurons that a predictor names (PowerInfer, arXiv
2312.12456)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Node, Value
from engine.models.feed_forward import GATED, PLACES
from engine.models.layers import biased, project
from engine.passes import Memory, Pass

TARGETS = ("cpu", "cuda")  # of PLACES
LEAST = float(np.finfo(np.float32).smallest_subnormal)  # of the numbers that relu leaves


def sparse(config: ModelConfig, weights: Mapping[str, Value]) -> Pass:
    """The pass that makes the networks of the config's sparse blocks so: what a predictor looks at
    is what the network's input was normalised from."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        nodes = graph.nodes
        for i in config.sparsity.ranks if config.sparsity else ():
            begin, end = _dense(nodes, f"blk.{i}.ffn_")
            x = _array(nodes[begin], "x")
            norm = next(node for node in nodes if node.arguments.get("out") == x)
            made = _Network(Graph(), f"blk.{i}", x, weights, config)
            made.build(residual=_array(norm, "x"))
            *before, last = made.graph.nodes
            arguments = {**last.arguments, "out": nodes[end - 1].arguments["out"]}
            nodes = [*nodes[:begin], *before, replace(last, arguments=arguments), *nodes[end:]]
        return Graph(nodes), memory

    return apply


def _dense(nodes: Sequence[Node], prefix: str) -> tuple[int, int]:
    """Where a dense network begins and ends."""
    labels = [node.label for node in nodes]
    begin = next(i for i, n in enumerate(labels) if n in (f"{prefix}gate", f"{prefix}up"))
    end = max(i for i, n in enumerate(labels) if n.startswith(f"{prefix}down_t"))
    return begin, end + 1


def _array(node: Node, name: str) -> Value:
    value = node.arguments[name]
    assert isinstance(value, Value)
    return value


@dataclass(frozen=True, slots=True)
class _Network:
    """A block's network, made of `x`, its normalised input [tokens hidden]. Neurons that live at a
    place are named by that `part` of PLACES, all of them by ""."""

    graph: Graph
    block: str
    x: Value
    weights: Mapping[str, Value]
    config: ModelConfig

    def build(self, residual: Value) -> None:
        """The neurons that the predictor names; of these, where there is a gate, up of those alone
        whose gate relu leaves, since the others add nothing. Neurons that live apart are computed
        apart and come together before down, so that its sum is the same."""
        graph, block, weights, sparsity = self.graph, self.block, self.weights, self.config.sparsity
        assert sparsity is not None
        inner = project(graph, weights, f"{block}.fc1", residual)
        inner = graph("relu", f"{block}.fc1_relu", x=inner)
        logits = project(graph, weights, f"{block}.fc2", inner)
        mask = graph("threshold_mask", f"{block}.mask", logits=logits, threshold=sparsity.threshold)
        if sparsity.union:
            mask = graph("union_mask", f"{block}.union", mask=mask)
        if sparsity.apart:
            whole = self._sides(mask)
        else:
            active = self._active("active", mask)
            if f"{block}.gpu_idx" in weights:
                a, b = (self._activations(part, self._living(part, mask)) for part in PLACES)
                fired = graph("add", f"{block}.fired", x=a, y=b)  # one of them is zero
            else:
                fired = self._activations("", active)
            whole = self._sum("", fired, active)
        biased(graph, weights, f"{block}.ffn_down_t", whole)

    def _sides(self, mask: Value) -> Value:
        """The neurons of each place computed there, down included, the GPU's first, so that it is
        at work while the CPU is."""
        block, sums = self.block, []
        for part, target in reversed(list(zip(PLACES, TARGETS, strict=True))):
            if f"{block}.slots{part}" not in self.weights:
                continue
            own = {**self.weights, "ffn.rows": self.weights[f"{block}.slots{part}"]}
            for name in ("ffn_gate", "ffn_up", "ffn_down_t"):
                if f"{block}.{name}.weight{part}" in own:
                    own[f"{block}.{name}.weight"] = own[f"{block}.{name}.weight{part}"]
            there = replace(self, weights=own)
            with self.graph.on(target):
                living = there._living(part, mask)
                sums.append(there._sum(part, there._activations(part, living), living))
        return self.graph("add", f"{block}.sides", x=sums[0], y=sums[1]) if sums[1:] else sums[0]

    def _living(self, part: str, mask: Value) -> dict[str, Value]:
        """The active neurons that live at a place."""
        places, place = self.weights[f"{self.block}.gpu_idx"], float(PLACES.index(part))
        label = f"{self.block}.mask{part}"
        own = self.graph("neuron_split", label, mask=mask, places=places, place=place)
        return self._active(f"active{part}", own)

    def _active(self, name: str, mask: Value) -> dict[str, Value]:
        """The mask with the rows that it names."""
        rows, count = self.graph.several("active_rows", f"{self.block}.{name}_rows", mask=mask)
        return {"mask": mask, "rows": rows, "count": count}

    def _activations(self, part: str, active: Mapping[str, Value]) -> Value:
        """The activations of the active neurons [tokens ffn], zero for the others."""
        graph, block, activation = self.graph, self.block, self.config.activation
        label = f"{block}.{activation}{part}"
        if activation not in GATED:
            return graph(activation, label, x=self._rows("ffn_up", part, active))
        gate = self._rows("ffn_gate", part, active)
        open_ = graph("threshold_mask", f"{block}.open{part}", logits=gate, threshold=LEAST)
        up = self._rows("ffn_up", part, self._active(f"open{part}", open_))
        return graph(activation, label, gate=gate, up=up)

    def _rows(self, name: str, part: str, active: Mapping[str, Value]) -> Value:
        """The products of the tensor's active rows with the input."""
        label = f"{self.block}.{name}"
        weight, slots = self.weights[f"{label}.weight"], self.weights["ffn.rows"]
        out = self.graph(
            "sparse_linear", f"{label}{part}", x=self.x, weight=weight, slots=slots, **active
        )
        if f"{label}.bias" not in self.weights:
            return out
        out = biased(self.graph, self.weights, label, out, part)  # of inactive neurons too
        return self.graph("where_active", f"{label}_active{part}", x=out, mask=active["mask"])

    def _sum(self, part: str, fired: Value, active: Mapping[str, Value]) -> Value:
        """The active neurons' part of the output [tokens hidden]."""
        name = f"{self.block}.ffn_down_t"
        weight, slots = self.weights[f"{name}.weight"], self.weights["ffn.rows"]
        rows, count = active["rows"], active["count"]
        return self.graph(
            "sparse_axpy", f"{name}{part}",
            a=fired, weight=weight, rows=rows, count=count, slots=slots,
        )  # fmt: skip
