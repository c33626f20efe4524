"""A pass in which attention reads keys and values packed to two bits (engine/cache/two_bits.py)."""

from dataclasses import replace

import numpy as np

from engine.cache.two_bits import TwoBits
from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory, Pass, zeros
from engine.passes.attending import demand_own_cells, heads_of
from kernels.cpu.formats.packing import aligned_zeros
from reference.formats.kivi import GROUP, KIVI, PAGE_BYTES


def packing(pages: TwoBits) -> Pass:
    """Before attention of each block, pack the groups that are due; attention is over pages and
    unpacked cells. Checks that all blocks have such cells."""

    def apply(graph: Graph, memory: Memory) -> tuple[Graph, Memory]:
        blocks = demand_own_cells(f"kv_format {KIVI}", graph)
        into, packed = (Value(name, "input", "i32", ("tokens",)) for name in ("into", "packed"))
        page_lists = Value("page_lists", "input", "i32", pages.page_lists.shape)
        added = zeros((into, packed), memory) | {page_lists.name: pages.page_lists}

        def packs(node: Node) -> list[Node]:
            if node is not blocks.get(node.block):
                return [node]
            heads, nodes, own = heads_of(node), list[Node](), dict[str, Value]()
            if heads.size % GROUP:
                raise ModelError(
                    f"kv_format {KIVI} has groups of {GROUP}: the {heads.size} elements of a head"
                    f" of {node.block} are no whole number of them"
                )
            for part, op in (("k", "kivi_keys"), ("v", "kivi_values")):
                name, dims = f"{node.block}.{part}_pages", (heads.kv_heads, heads.size, PAGE_BYTES)
                own[f"{part}_pages"] = page = Value(name, "cache", "u8", (pages.count, *dims))
                added[name] = aligned_zeros(page.sizes({}), np.uint8)
                given = {"x": node.arguments[part], "into": into, "before": page, "out": page}
                given |= {name: node.arguments[name] for name in ("lists", "spans")}
                nodes.append(Node(op, given, node.format, name))
            attends = replace(node, op="attention_kivi")
            return [*nodes, attends.with_arguments(**own, page_lists=page_lists, packed=packed)]

        return graph.map_nodes(packs), memory | added

    return apply
