"""A pass in which a block's streaming heads attend to caches of their own
(engine/cache/streaming.py)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from engine.cache.streaming import STREAMING, Streaming
from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass, spans, zeros
from engine.passes.attending import attending, demand_own_cells, heads_of
from kernels.cpu.formats.packing import aligned_zeros
from reference.formats import FORMATS
from reference.op import Array

WHOLE = ".attention_whole"  # label of the heads that keep all cells, as STREAMING of the others
Given = Mapping[str, Value | float]


def split_heads(method: Streaming) -> Pass:
    """In blocks with streaming heads, split keys, values and queries by kind of head, let each kind
    attend to its own cache, and join the outputs. Other blocks are unchanged. Checks that the
    policy suits the model."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        streams = dict(zip(_demand_heads(method, graph), method.streaming, strict=True))
        cells = Value("streaming_cells", "input", "i32", ("tokens",))
        added = zeros((cells, spans("streaming_spans")), memory)
        added |= {"streaming_lists": method.lists, "streaming_positions": method.positions}
        blocks = {
            name: _Block(name, node, streams[name], method)
            for name, node in attending(graph).items()
            if streams[name].any()
        }
        for block in blocks.values():
            added |= block.memory(memory)

        def apart(node: Node) -> list[Node]:
            own = blocks.get(node.block)
            if own and node.op == "kv_write":
                return own.writes(node)
            return own.attends() if own and node.op == "attention" else [node]

        return graph.map_nodes(apart), memory | added

    return apply


def _demand_heads(method: Streaming, graph: Graph) -> list[str]:
    """The attention nodes; tells the method which heads stream. ModelError where the policy does
    not suit the model."""
    seen, capacity = method.policy.max_seen, method.cells.capacity
    if seen >= capacity:
        raise ModelError(
            f"kv_policy DuoAttention: streaming heads see {seen} cells, which is all of a context"
            f" of {capacity}: nothing would be left out"
        )
    blocks = demand_own_cells("kv_policy DuoAttention", graph)
    heads = {block: heads_of(node) for block, node in blocks.items()}
    for block, node in blocks.items():
        unit, size = FORMATS[node.format or "F32"].block, heads[block].size
        if size % unit:
            raise ModelError(
                f"kv_policy DuoAttention: heads of {block} have {size} elements, no whole"
                f" blocks of {unit} as kv_format {node.format} has them"
            )
    kv_heads = {own.kv_heads for own in heads.values()}
    if len(kv_heads) > 1:
        raise ModelError(f"kv_policy DuoAttention: blocks have {sorted(kv_heads)} heads of keys")
    method.streaming = method.policy.streaming(len(blocks), *kv_heads)
    return list(blocks)


@dataclass(frozen=True, slots=True)
class _Heads:
    """KV heads of a block, `numbers`, that keep all cells or that stream: the label of their
    attention node, the cells that they are written to, and the attention node's cache inputs."""

    numbers: Array
    label: str
    cells: Value
    given: Given

    def cache(self, part: str) -> Value:
        """Their cache of keys or of values."""
        cache = self.given[part]
        assert isinstance(cache, Value)
        return cache

    @property
    def picked(self) -> Value:
        """Where each token has them, with heads as rows."""
        return Value(f"{self.label}.heads", "input", "i32", (f"tokens*{len(self.numbers)}",))


class _Block:
    """A block with streaming heads."""

    def __init__(self, name: str, node: Node, streams: Array, method: Streaming) -> None:
        own, self._node, self._q = heads_of(node), node, node.value("q")
        self._kv_heads, self._head_dim = own.kv_heads, own.size
        self._group = own.heads // own.kv_heads
        rows, keeping = (method.rows_held.count,), np.flatnonzero(~streams).astype(np.int32)
        streaming = np.flatnonzero(streams).astype(np.int32)
        whole = {part: self._cache(part, "cache", len(keeping)) for part in ("k", "v")}
        few = {part: self._cache(part, "streaming", len(streaming), rows) for part in ("k", "v")}
        few |= {
            "lists": Value("streaming_lists", "input", "i32", method.lists.shape),
            "spans": spans("streaming_spans"),
            "cell_positions": Value("streaming_positions", "input", "i32", rows),
        }
        cells = Value("streaming_cells", "input", "i32", ("tokens",))
        self._kinds = [
            _Heads(
                keeping, name + WHOLE, replace(cells, name="cells"), {**node.arguments, **whole}
            ),
            _Heads(streaming, name + STREAMING, cells, {**node.arguments, **few}),
        ]

    def _cache(self, part: str, kind: str, heads: int, rows: tuple[int, ...] = ()) -> Value:
        whole = self._node.value(part)
        name = whole.name.removesuffix("cache") + kind
        return replace(whole, name=name, dims=(*(rows or whole.dims[:1]), heads * self._head_dim))

    def memory(self, memory: Memory) -> Memory:
        """Caches and constants of each kind of head."""
        added: Memory = {}
        for heads in self._kinds:
            tokens = np.arange(len(memory["tokens"]), dtype=np.int32)[:, None]
            added[heads.picked.name] = (tokens * self._kv_heads + heads.numbers).reshape(-1)
            for part in ("k", "v"):
                cache = heads.cache(part)
                added[cache.name] = aligned_zeros(cache.sizes({}), np.uint8)
            for name in ("slopes", "sinks"):
                own = memory[self._node.value(name).name].reshape(self._kv_heads, -1)[heads.numbers]
                added[f"{heads.label}.{name}"] = own.reshape(-1)
        return added

    def writes(self, node: Node) -> list[Node]:
        """Replace the write to the block's cache of keys or values by one for each kind of head."""
        graph, x = Graph(), node.value("x")
        part = "k" if node.value("before") == self._node.value("k") else "v"
        for heads in self._kinds:
            if not len(heads.numbers):
                continue
            cache = heads.cache(part)
            new = self._picked(graph, heads, f"{cache.name}_new", x, self._head_dim)
            new = new.view("tokens", cache.dims[1])
            graph(
                "kv_write", f"{cache.name}_write", out=cache, x=new, cells=heads.cells,
                before=cache,
            )  # fmt: skip
        return graph.nodes

    def attends(self) -> list[Node]:
        """Each kind of head attends; outputs are scattered to their heads."""
        graph, out, wide = Graph(), self._node.value("out"), self._group * self._head_dim
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
        """One kind's heads of every token, as rows."""
        rows = x.view(f"tokens*{self._kv_heads}", width).as_weight()
        return graph("embedding", name, tokens=heads.picked, weight=rows)
