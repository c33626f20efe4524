"""A pass that has pairs of blocks share keys and values, and read them so (cache/merged.py)."""

from dataclasses import replace

import numpy as np

from engine.cache.eviction import demand_own_cells, kv_heads_of
from engine.cache.merged import Merged
from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass
from kernels.cpu.formats.packing import aligned_zeros
from reference.formats.minicache import GROUP, page_bytes

NAME = "kv_policy MiniCache"


def merging(method: Merged) -> Pass:
    """Before attention of each pair of blocks the groups that are due are merged, and attention of
    both is over pages and what is not merged yet; checks that the blocks have such cells."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        tokens, sequences = len(memory["tokens"]), len(method.page_lists)
        if not method.pages_seen(len(memory["cell_positions"]) - 1):
            raise ModelError(
                f"{NAME} merges {GROUP} tokens that {method.policy.recent} are younger than, which"
                f" is all of a context of {len(memory['cell_positions'])}: nothing would be merged"
            )
        blocks = list(demand_own_cells(NAME, graph).items())[method.block :]
        both = zip(blocks[::2], blocks[1::2], strict=True)
        pairs = {lower[0]: _Pair(lower, upper, method) for lower, upper in both}
        of = {name: pair for pair in pairs.values() for name in pair.names}
        added: Memory = {
            "packed": np.zeros(tokens, np.int32),
            "unmerged_spans": np.zeros((tokens, 3), np.int32),
            "due": np.zeros((sequences, 2), np.int32),
            "page_lists": method.page_lists,
        }
        nodes: list[Node] = []
        for node in graph.nodes:
            block = node.label.rpartition(".")[0]
            if node.op != "attention" or block not in of:
                nodes.append(node)
                continue
            if block in pairs:
                nodes += pairs[block].merged()
                added |= pairs[block].memory()
            nodes.append(of[block].attention(node, block))
        return replace(graph, nodes=nodes), memory | added

    return apply


class _Pair:
    """Two adjacent blocks, the nodes that attend in them by name."""

    def __init__(self, lower: tuple[str, Node], upper: tuple[str, Node], method: Merged) -> None:
        self._method, self._nodes = method, dict((lower, upper))
        self.names, self.kv_heads = list(self._nodes), kv_heads_of(lower[1])
        shapes = [(kv_heads_of(node), _dims(node)[1:]) for node in self._nodes.values()]
        if shapes[0] != shapes[1]:
            raise ModelError(f"{NAME}: heads of {self.names[0]} and {self.names[1]} are not alike")
        if lower[1].format != "F16":
            raise ModelError(f"{NAME} merges cells in F16: kv_format is {lower[1].format}")
        head_dim = _dims(lower[1])[2]
        assert isinstance(head_dim, int)
        if head_dim % 16:
            raise ModelError(
                f"{NAME}: heads of {self.names[0]} have {head_dim} elements: want a multiple of 16"
            )
        self._dims = self.kv_heads, page_bytes(head_dim, method.policy.kept)

    def _pages(self, part: str) -> Value:
        name = f"{self.names[0]}.{part}_pages"
        return Value(name, "cache", "u8", (self._method.count, *self._dims))

    def memory(self) -> Memory:
        pages, weights = (self._pages(part) for part in "kv"), self._weights()
        made: Memory = {page.name: aligned_zeros(page.sizes({}), np.uint8) for page in pages}
        return {**made, weights.name: np.zeros(weights.sizes({}), np.float32)}

    def _weights(self) -> Value:
        """What merging wants, which pairs of as many heads have in turns."""
        sequences, slots = self._method.page_lists.shape
        dims = sequences, self.kv_heads, 5, GROUP * slots
        return Value(f"merging.{self.kv_heads}.weights", "cache", "f32", dims)

    def merged(self) -> list[Node]:
        """What merges keys, and then values."""
        nodes, method = list[Node](), self._method
        sequences, slots = method.page_lists.shape
        weights = self._weights()
        due = Value("due", "input", "i32", (sequences, 2))
        lower, upper = (node.arguments for node in self._nodes.values())
        for part in "kv":
            page = self._pages(part)
            given = {"x": lower[part], "y": upper[part], "lists": lower["lists"], "due": due}
            towards = method.policy.towards / 100
            own = {**given, "towards": towards, "before": weights, "out": weights}
            nodes.append(Node("slerp_weights", own, "F16", f"{page.name}.weights"))
            own = {**given, "weights": weights, "before": page, "out": page}
            own["page_lists"] = Value("page_lists", "input", "i32", (sequences, slots))
            nodes.append(Node("merge_blocks", own, "F16", page.name))
        return nodes

    def attention(self, node: Node, block: str) -> Node:
        more: dict[str, Value | float] = {
            "spans": Value("unmerged_spans", "input", "i32", ("tokens", 3)),
            "k_pages": self._pages("k"),
            "v_pages": self._pages("v"),
            "page_lists": Value("page_lists", "input", "i32", self._method.page_lists.shape),
            "packed": Value("packed", "input", "i32", ("tokens",)),
            "upper": self.names.index(block),
        }
        return replace(node, op="attention_minicache", arguments={**node.arguments, **more})


def _dims(node: Node) -> tuple[int | str, ...]:
    q = node.arguments["q"]
    assert isinstance(q, Value)
    return q.dims
