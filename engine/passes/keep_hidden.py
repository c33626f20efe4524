"""A pass that stores, for every cell, the input of the output layer after its token."""

import numpy as np

from engine.graph import Graph, Value
from engine.models.mtp import HIDDEN
from engine.passes import Memory
from reference.table import OPS


def keep_hidden(graph: Graph, memory: Memory, name: str = HIDDEN) -> tuple[Graph, Memory]:
    """The graph with the last norm over all tokens, not only those whose logits are wanted, and its
    result in a cache of float32 rows of this name."""
    last, made = graph.hidden, Graph()
    (norm,) = (node for node in graph.nodes if node.label == last.name)
    capacity, width = len(memory["cell_positions"]), last.fixed(1)
    cache = Value(name, "cache", "u8", (capacity, width), "F32")
    for node in graph.nodes:
        if node.label == "rows":
            x = node.value("weight")
            given = {a.name: norm.arguments[a.name] for a in OPS[norm.op].inputs}
            given["x"] = Value(x.name, x.kind, "f32", x.dims)
            every = made(norm.op, "hidden", None, **given)
            cells = Value("cells", "input", "i32", ("tokens",))
            made("kv_write", "hidden_write", out=cache, x=every, cells=cells, before=cache)
        made.nodes.append(node)
    return made, memory | {name: np.zeros(cache.sizes({}), np.uint8)}
