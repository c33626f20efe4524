"""A pass in which pairs of blocks share merged keys and values (engine/cache/merged.py)."""

from dataclasses import replace

import numpy as np

from engine.cache.merged import Merged
from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass, spans, zeros
from engine.passes.attending import demand_own_cells, heads_of
from kernels.cpu.formats.packing import aligned_zeros
from reference.formats.minicache import GROUP, page_bytes

NAME = "kv_policy MiniCache"


def merging(method: Merged) -> Pass:
    """Before attention in each pair of blocks, merge the groups that are due; both attend to merged
    pages and to unmerged cells. Checks that the blocks have such cells."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        if not method.pages_seen(len(memory["cell_positions"]) - 1):
            raise ModelError(
                f"{NAME} merges {GROUP} tokens that {method.policy.recent} are younger than, which"
                f" is all of a context of {len(memory['cell_positions'])}: nothing would be merged"
            )
        blocks = list(demand_own_cells(NAME, graph).items())[method.block :]
        both = zip(blocks[::2], blocks[1::2], strict=True)
        pairs = {lower[0]: _Pair(lower, upper, method) for lower, upper in both}
        of = {name: pair for pair in pairs.values() for name in pair.names}
        own = _Inputs(method)
        added = zeros((own.packed, own.spans, own.due), memory)
        added |= {own.page_lists.name: method.page_lists}
        for pair in pairs.values():
            added |= pair.memory()

        def merges(node: Node) -> list[Node]:
            if node.op != "attention" or node.block not in of:
                return [node]
            before = pairs[node.block].merged() if node.block in pairs else []
            return [*before, of[node.block].attention(node)]

        return graph.map_nodes(merges), memory | added

    return apply


class _Inputs:
    """The step's inputs, and its memory beside caches."""

    def __init__(self, method: Merged) -> None:
        self.sequences, slots = method.page_lists.shape
        self._places = GROUP * slots
        self.packed = Value("packed", "input", "i32", ("tokens",))
        self.spans = spans("unmerged_spans")
        self.due = Value("due", "input", "i32", (self.sequences, 2))
        self.page_lists = Value("page_lists", "input", "i32", (self.sequences, slots))

    def weights(self, kv_heads: int) -> Value:
        """Interpolation weights of keys or values, a buffer shared by pairs with as many heads."""
        dims = self.sequences, kv_heads, 5, self._places
        return Value(f"merging.{kv_heads}.weights", "cache", "f32", dims)


class _Pair:
    """Two adjacent blocks and their attention nodes, by name."""

    def __init__(self, lower: tuple[str, Node], upper: tuple[str, Node], method: Merged) -> None:
        self._method, self._nodes, self._inputs = method, dict((lower, upper)), _Inputs(method)
        heads, others = (heads_of(node) for node in self._nodes.values())
        self.names, self.kv_heads = list(self._nodes), heads.kv_heads
        if heads != others:
            raise ModelError(f"{NAME}: heads of {self.names[0]} and {self.names[1]} are not alike")
        if lower[1].format != "F16":
            raise ModelError(f"{NAME} merges cells in F16: kv_format is {lower[1].format}")
        if heads.size % 16:
            raise ModelError(
                f"{NAME}: heads of {self.names[0]} have {heads.size} elements: want a multiple of"
                " 16"
            )
        self._dims = self.kv_heads, page_bytes(heads.size, method.policy.kept)

    def _pages(self, part: str) -> Value:
        name = f"{self.names[0]}.{part}_pages"
        return Value(name, "cache", "u8", (self._method.count, *self._dims))

    def memory(self) -> Memory:
        pages, weights = map(self._pages, "kv"), self._inputs.weights(self.kv_heads)
        made: Memory = {page.name: aligned_zeros(page.sizes({}), np.uint8) for page in pages}
        return {**made, weights.name: np.zeros(weights.sizes({}), np.float32)}

    def merged(self) -> list[Node]:
        """The nodes that merge keys, then values."""
        nodes, own = list[Node](), self._inputs
        weights, towards = own.weights(self.kv_heads), self._method.policy.towards / 100
        lower, upper = (node.arguments for node in self._nodes.values())
        for part in "kv":
            page = self._pages(part)
            given = {"x": lower[part], "y": upper[part], "lists": lower["lists"], "due": own.due}
            how = {**given, "towards": towards, "before": weights, "out": weights}
            nodes.append(Node("slerp_weights", how, "F16", f"{page.name}.weights"))
            how = {**given, "weights": weights, "before": page, "out": page}
            how["page_lists"] = own.page_lists
            nodes.append(Node("merge_blocks", how, "F16", page.name))
        return nodes

    def attention(self, node: Node) -> Node:
        """The attention node over pages and unmerged cells."""
        own = self._inputs
        return replace(node, op="attention_minicache").with_arguments(
            spans=own.spans,
            k_pages=self._pages("k"),
            v_pages=self._pages("v"),
            page_lists=own.page_lists,
            packed=own.packed,
            upper=self.names.index(node.block),
        )
