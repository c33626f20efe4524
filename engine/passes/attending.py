"""A graph's attention nodes, and the requirements that cache methods put on them."""

from dataclasses import dataclass

import numpy as np

from engine.errors import ModelError
from engine.graph import Graph, Node, Value
from engine.passes import Memory


@dataclass(frozen=True, slots=True)
class Heads:
    """A block's numbers of query and KV heads, and their dimension."""

    heads: int
    kv_heads: int
    size: int


def heads_of(node: Node) -> Heads:
    """The heads of an attention node."""
    q, size = node.value("q"), node.value("q").fixed(2)
    return Heads(q.fixed(1), node.value("k").fixed(1) // size, size)


def attending(graph: Graph) -> dict[str, Node]:
    """The attention nodes by block."""
    return {node.block: node for node in graph.nodes if node.op == "attention"}


def demand_attention(what: str, graph: Graph) -> dict[str, Node]:
    """The attention nodes by block; ModelError that `what` needs attention in every block."""
    blocks = attending(graph)
    values = (value for node in graph.nodes for value in node.arguments.values())
    if not blocks or any(isinstance(v, Value) and v.name == "sources" for v in values):
        raise ModelError(f"{what}: blocks of this model are recurrent, not cells of keys")
    return blocks


def demand_own_cells(what: str, graph: Graph) -> dict[str, Node]:
    """The same, if each token sees all cells of its own text and blocks have their own cells."""
    blocks = demand_attention(what, graph)
    for block, node in blocks.items():
        names = node.value("k").name, node.value("v").name
        if names != (f"{block}.k_cache", f"{block}.v_cache"):
            raise ModelError(f"{what}: {block} has no keys and values of its own to choose among")
        if node.value("spans").name != "spans":
            raise ModelError(f"{what}: {block} sees a window of the text as it is")
    return blocks


def demand_plain_scores(what: str, graph: Graph, memory: Memory, sinks: bool) -> dict[str, Node]:
    """The same, if scores also have no distance bias, and no sinks unless `sinks` allows them."""
    blocks = demand_own_cells(what, graph)
    for block, node in blocks.items():
        if memory[node.value("slopes").name].any():
            raise ModelError(
                f"{what}: scores of {block} go by distance (ALiBi), which cells that moved no"
                " longer tell: want a model with rope"
            )
        if not sinks and (memory[node.value("sinks").name] != -np.inf).any():
            raise ModelError(f"{what}: {block} has sinks, which take a part of attention")
    return blocks
