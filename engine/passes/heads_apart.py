"""A pass that has the streaming heads of each block attend to caches of their own
(engine/cache/streaming.py)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from engine.cache.eviction import attending, demand_own_cells, kv_heads_of
from engine.cache.streaming import STREAMING, Streaming
from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass
from kernels.cpu.formats.packing import aligned_zeros
from reference.formats import FORMATS
from reference.op import Array

WHOLE = ".attention_whole"  # of the heads that keep all, as STREAMING of the others
Given = Mapping[str, Value | float]


def heads_apart(method: Streaming) -> Pass:
    """In blocks where some heads stream keys, values and queries are put apart, each kind of heads
    attends to its own cache, and what they give is put together. Other blocks stay as they are.
    Checks that the policy goes with the model."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        _check(method, graph)
        added: Memory = {
            "streaming_cells": np.zeros(len(memory["tokens"]), np.int32),
            "streaming_lists": method.lists,
            "streaming_spans": np.zeros((len(memory["tokens"]), 3), np.int32),
            "streaming_positions": method.positions,
        }
        blocks = {
            name: _Block(name, node, streams, method)
            for (name, node), streams in zip(
                attending(graph).items(), method.streaming, strict=True
            )
            if streams.any()
        }
        for block in blocks.values():
            added |= block.memory(memory)
        nodes: list[Node] = []
        for node in graph.nodes:
            own = blocks.get(node.label.rpartition(".")[0])
            if own and node.op == "kv_write":
                nodes += own.writes(node)
            elif own and node.op == "attention":
                nodes += own.attends()
            else:
                nodes.append(node)
        return replace(graph, nodes=nodes), memory | added

    return apply


def _check(method: Streaming, graph: Graph) -> None:
    """Raise ModelError where the policy does not go with a model; let the method know its heads."""
    seen, capacity = method.policy.seen, method.cells.capacity
    if seen >= capacity:
        raise ModelError(
            f"kv_policy DuoAttention: streaming heads see {seen} cells, which is all of a context"
            f" of {capacity}: nothing would be left out"
        )
    blocks = demand_own_cells("kv_policy DuoAttention", graph)
    kv_heads = {kv_heads_of(node) for node in blocks.values()}
    for block, node in blocks.items():
        q, unit = node.arguments["q"], FORMATS[node.format or "F32"].block
        assert isinstance(q, Value)
        if (head_dim := q.sizes({"tokens": 1})[2]) % unit:
            raise ModelError(
                f"kv_policy DuoAttention: heads of {block} have {head_dim} elements, no whole"
                f" blocks of {unit} as kv_format {node.format} has them"
            )
    if len(kv_heads) > 1:
        raise ModelError(f"kv_policy DuoAttention: blocks have {sorted(kv_heads)} heads of keys")
    method.streaming = method.policy.streaming(len(blocks), *kv_heads)


@dataclass(frozen=True, slots=True)
class _Heads:
    """Heads of keys of a block, `numbers`, that keep all or that stream: the label of what attends
    for them, the cells that they are written to, and what attention is given of caches."""

    numbers: Array
    label: str
    cells: Value
    given: Given

    @property
    def picked(self) -> Value:
        """Where each token has them, if heads stand as rows."""
        return Value(f"{self.label}.heads", "input", "i32", (f"tokens*{len(self.numbers)}",))


class _Block:
    """A block of which some heads stream."""

    def __init__(self, name: str, node: Node, streams: Array, method: Streaming) -> None:
        self._node, self._kv_heads, q = node, len(streams), node.arguments["q"]
        assert isinstance(q, Value)
        _, heads, head_dim = q.sizes({"tokens": 1})
        self._q, self._group, self._head_dim = q, heads // self._kv_heads, head_dim
        rows, keeping = (method.rows_held.count,), np.flatnonzero(~streams).astype(np.int32)
        streaming = np.flatnonzero(streams).astype(np.int32)
        whole = {part: self._cache(part, "cache", len(keeping)) for part in ("k", "v")}
        few = {part: self._cache(part, "streaming", len(streaming), rows) for part in ("k", "v")}
        few |= {
            "lists": Value("streaming_lists", "input", "i32", method.lists.shape),
            "spans": Value("streaming_spans", "input", "i32", ("tokens", 3)),
            "cell_positions": Value("streaming_positions", "input", "i32", rows),
        }
        own = Value("streaming_cells", "input", "i32", ("tokens",))
        self._kinds = [
            _Heads(keeping, name + WHOLE, replace(own, name="cells"), {**node.arguments, **whole}),
            _Heads(streaming, name + STREAMING, own, {**node.arguments, **few}),
        ]

    def _cache(self, part: str, kind: str, heads: int, rows: tuple[int, ...] = ()) -> Value:
        whole = self._node.arguments[part]
        assert isinstance(whole, Value)
        name = whole.name.removesuffix("cache") + kind
        return replace(whole, name=name, dims=(*(rows or whole.dims[:1]), heads * self._head_dim))

    def memory(self, memory: Memory) -> Memory:
        """Caches, and what is a constant of each kind of heads."""
        added: Memory = {}
        for heads in self._kinds:
            tokens = np.arange(len(memory["tokens"]), dtype=np.int32)[:, None]
            added[heads.picked.name] = (tokens * self._kv_heads + heads.numbers).reshape(-1)
            for part in ("k", "v"):
                cache = heads.given[part]
                assert isinstance(cache, Value)
                added[cache.name] = aligned_zeros(cache.sizes({}), np.uint8)
            for name in ("slopes", "sinks"):
                whole = self._node.arguments[name]
                assert isinstance(whole, Value)
                own = memory[whole.name].reshape(self._kv_heads, -1)[heads.numbers]
                added[f"{heads.label}.{name}"] = own.reshape(-1)
        return added

    def writes(self, node: Node) -> list[Node]:
        """Instead of a write to the block's cache of keys or values one for each kind of heads."""
        graph, x, before = Graph(), node.arguments["x"], node.arguments["before"]
        assert isinstance(x, Value)
        part = "k" if before == self._node.arguments["k"] else "v"
        for heads in self._kinds:
            if not len(heads.numbers):
                continue
            cache = heads.given[part]
            assert isinstance(cache, Value)
            new = self._picked(graph, heads, f"{cache.name}_new", x, self._head_dim)
            new = new.view("tokens", cache.dims[1])
            graph(
                "kv_write", f"{cache.name}_write", out=cache, x=new, cells=heads.cells,
                before=cache,
            )  # fmt: skip
        return graph.nodes

    def attends(self) -> list[Node]:
        """Each kind of heads attends; what they give is written to their places among all."""
        graph, out, wide = Graph(), self._node.arguments["out"], self._group * self._head_dim
        assert isinstance(out, Value)
        rows = out.view(f"tokens*{self._kv_heads}", wide).as_weight()
        for heads in self._kinds:
            if not len(heads.numbers):
                continue
            count = len(heads.numbers) * self._group
            q = self._picked(graph, heads, f"{heads.label}.q", self._q, wide)
            own = {
                name: Value(f"{heads.label}.{name}", "weight", "f32", (count,))
                for name in ("slopes", "sinks")
            }
            given = {name: value for name, value in heads.given.items() if name != "out"}
            given |= {"q": q.view("tokens", count, self._head_dim), **own}
            found = graph("attention", heads.label, None, **given)
            graph(
                "kv_write", f"{heads.label}.put", out=rows, before=rows,
                x=found.view(f"tokens*{len(heads.numbers)}", wide), cells=heads.picked,
            )  # fmt: skip
        return graph.nodes

    def _picked(self, graph: Graph, heads: _Heads, name: str, x: Value, width: int) -> Value:
        """Of what all heads of a token have those of one kind, as rows."""
        rows = x.view(f"tokens*{self._kv_heads}", width).as_weight()
        return graph("embedding", name, tokens=heads.picked, weight=rows)
