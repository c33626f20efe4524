"""A pass that has keys and values packed into two bits, and read so (engine/cache/two_bits.py)."""

from dataclasses import replace

import numpy as np

from engine.cache.eviction import demand_own_cells, kv_heads_of
from engine.cache.two_bits import TwoBits
from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass
from kernels.cpu.formats.packing import aligned_zeros
from reference.formats.kivi import GROUP, KIVI, PAGE_BYTES


def packing(pages: TwoBits) -> Pass:
    """Before attention of each block the groups that are due are packed, and attention is over
    pages and what is not packed yet; checks that all blocks have such cells."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        blocks = demand_own_cells(f"kv_format {KIVI}", graph)
        nodes: list[Node] = []
        tokens = len(memory["tokens"])
        into, packed = (Value(name, "input", "i32", ("tokens",)) for name in ("into", "packed"))
        page_lists = Value("page_lists", "input", "i32", pages.page_lists.shape)
        added: Memory = {
            "into": np.zeros(tokens, np.int32),
            "packed": np.zeros(tokens, np.int32),
            "page_lists": pages.page_lists,
        }
        for node in graph.nodes:
            block = node.label.rpartition(".")[0]
            if node is not blocks.get(block):
                nodes.append(node)
                continue
            q, own = node.arguments["q"], {}
            assert isinstance(q, Value)
            if not isinstance(q.dims[2], int) or q.dims[2] % GROUP:
                raise ModelError(
                    f"kv_format {KIVI} has groups of {GROUP}: the {q.dims[2]} elements of a head of"
                    f" {block} are no whole number of them"
                )
            for part, op in (("k", "kivi_keys"), ("v", "kivi_values")):
                name, dims = f"{block}.{part}_pages", (kv_heads_of(node), q.dims[2], PAGE_BYTES)
                own[f"{part}_pages"] = page = Value(name, "cache", "u8", (pages.count, *dims))
                added[name] = aligned_zeros(page.dims, np.uint8)
                given = {"x": node.arguments[part], "into": into, "before": page, "out": page}
                given |= {name: node.arguments[name] for name in ("lists", "spans")}
                nodes.append(Node(op, given, node.format, name))
            more = {**own, "page_lists": page_lists, "packed": packed}
            arguments = {**node.arguments, **more}
            nodes.append(replace(node, op="attention_kivi", arguments=arguments))
        return replace(graph, nodes=nodes), memory | added

    return apply
