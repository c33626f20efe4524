"""A pass that runs only the feed-forward neurons that a predictor selects (PowerInfer, arXiv
2312.12456)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.graph import Graph, Node, Value
from engine.models.feed_forward import GATED, PLACES
from engine.models.network import Network
from engine.passes import Memory, Pass

TARGETS = ("cpu", "cuda")  # of PLACES
LEAST = float(np.finfo(np.float32).smallest_subnormal)  # of the numbers that relu lets through


def sparse(net: Network) -> Pass:
    """The pass for the config's sparse blocks: the predictor reads the input of the norm before the
    network."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        nodes, sparsity = graph.nodes, net.config.sparsity
        for i in sparsity.ranks if sparsity else ():
            begin, end = _dense(nodes, f"blk.{i}.ffn_")
            x = nodes[begin].value("x")
            norm = next(node for node in nodes if node.arguments.get("out") == x)
            made = replace(net, graph=Graph())
            _FeedForward(made, f"blk.{i}", x).build(residual=norm.value("x"))
            *before, last = made.graph.nodes
            last = last.with_arguments(out=nodes[end - 1].value("out"))
            nodes = [*nodes[:begin], *before, last, *nodes[end:]]
        return Graph(nodes), memory

    return apply


def _dense(nodes: Sequence[Node], prefix: str) -> tuple[int, int]:
    """Begin and end of a dense network's nodes."""
    labels = [node.label for node in nodes]
    begin = next(i for i, n in enumerate(labels) if n in (f"{prefix}gate", f"{prefix}up"))
    end = max(i for i, n in enumerate(labels) if n.startswith(f"{prefix}down_t"))
    return begin, end + 1


@dataclass(frozen=True, slots=True)
class _FeedForward:
    """A block's feed-forward network on `x`, its normalised input [tokens hidden]. Neurons placed
    on a device are named by that `part` of PLACES, all of them by ""."""

    net: Network
    block: str
    x: Value

    def build(self, residual: Value) -> None:
        """The predicted neurons; of these, where there is a gate, up runs only for those with a
        positive relu(gate), since the others contribute nothing. Neurons on different devices are
        computed there and joined before down, so that its sum is the same."""
        net, graph, block, sparsity = self.net, self.net.graph, self.block, self.net.config.sparsity
        assert sparsity is not None
        inner = net.project(f"{block}.fc1", residual)
        inner = graph("relu", f"{block}.fc1_relu", x=inner)
        logits = net.project(f"{block}.fc2", inner)
        mask = graph("threshold_mask", f"{block}.mask", logits=logits, threshold=sparsity.threshold)
        if sparsity.union:
            mask = graph("union_mask", f"{block}.union", mask=mask)
        if sparsity.apart:
            whole = self._hot_and_cold(mask)
        else:
            active = self._active("active", mask)
            if f"{block}.gpu_idx" in net.weights:
                a, b = (self._activations(part, self._resident(part, mask)) for part in PLACES)
                fired = net.add(f"{block}.fired", a, b)  # one of them is zero
            else:
                fired = self._activations("", active)
            whole = self._sum("", fired, active)
        net.biased(f"{block}.ffn_down_t", whole)

    def _hot_and_cold(self, mask: Value) -> Value:
        """Neurons of each place are computed there, down included, the GPU's first, so that both
        work at the same time."""
        block, sums = self.block, []
        for part, target in reversed(list(zip(PLACES, TARGETS, strict=True))):
            if f"{block}.slots{part}" not in self.net.weights:
                continue
            own = {**self.net.weights, "ffn.rows": self.net.weights[f"{block}.slots{part}"]}
            for name in ("ffn_gate", "ffn_up", "ffn_down_t"):
                if f"{block}.{name}.weight{part}" in own:
                    own[f"{block}.{name}.weight"] = own[f"{block}.{name}.weight{part}"]
            there = replace(self, net=replace(self.net, weights=own))
            with self.net.graph.on_target(target):
                resident = there._resident(part, mask)
                sums.append(there._sum(part, there._activations(part, resident), resident))
        return self.net.add(f"{block}.sides", *sums) if sums[1:] else sums[0]

    def _resident(self, part: str, mask: Value) -> dict[str, Value]:
        """The active neurons at a place."""
        places, place = self.net.weights[f"{self.block}.gpu_idx"], float(PLACES.index(part))
        label = f"{self.block}.mask{part}"
        own = self.net.graph("neuron_split", label, mask=mask, places=places, place=place)
        return self._active(f"active{part}", own)

    def _active(self, name: str, mask: Value) -> dict[str, Value]:
        """The mask and the list of rows that it selects."""
        rows, count = self.net.graph.multi_output(
            "active_rows", f"{self.block}.{name}_rows", mask=mask
        )
        return {"mask": mask, "rows": rows, "count": count}

    def _activations(self, part: str, active: Mapping[str, Value]) -> Value:
        """Activations of the active neurons [tokens ffn], zero for the others."""
        graph, block, activation = self.net.graph, self.block, self.net.config.activation
        label = f"{block}.{activation}{part}"
        if activation not in GATED:
            return graph(activation, label, x=self._rows("ffn_up", part, active))
        gate = self._rows("ffn_gate", part, active)
        open_ = graph("threshold_mask", f"{block}.open{part}", logits=gate, threshold=LEAST)
        up = self._rows("ffn_up", part, self._active(f"open{part}", open_))
        return graph(activation, label, gate=gate, up=up)

    def _rows(self, name: str, part: str, active: Mapping[str, Value]) -> Value:
        """Products of the tensor's active rows with the input."""
        label = f"{self.block}.{name}"
        weight, slots = self.net.weights[f"{label}.weight"], self.net.weights["ffn.rows"]
        out = self.net.graph(
            "sparse_linear", f"{label}{part}", x=self.x, weight=weight, slots=slots, **active
        )
        if f"{label}.bias" not in self.net.weights:
            return out
        out = self.net.biased(label, out, part)  # inactive neurons included
        return self.net.graph("where_active", f"{label}_active{part}", x=out, mask=active["mask"])

    def _sum(self, part: str, fired: Value, active: Mapping[str, Value]) -> Value:
        """The active neurons' part of the output [tokens hidden]."""
        name = f"{self.block}.ffn_down_t"
        weight, slots = self.net.weights[f"{name}.weight"], self.net.weights["ffn.rows"]
        rows, count = active["rows"], active["count"]
        return self.net.graph(
            "sparse_axpy", f"{name}{part}",
            a=fired, weight=weight, rows=rows, count=count, slots=slots,
        )  # fmt: skip
