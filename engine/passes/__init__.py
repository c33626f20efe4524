"""Passes: each takes a graph and the memory of its values to another graph and memory.

`Options.passes` names those that a model is loaded with, in their order. What a pass leaves to be
read, such as counts, is in the memory under the names of its values: `Model.memory`.
"""

from collections.abc import Callable

from engine.graph import Graph
from reference.op import Array

Memory = dict[str, Array]
Pass = Callable[[Graph, Memory], tuple[Graph, Memory]]


def limits_of(memory: Memory) -> dict[str, int]:
    """The largest sizes of a step, by the inputs that it has room for."""
    return {"tokens": len(memory["tokens"]), "outputs": len(memory["rows"])}
