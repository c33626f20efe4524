"""Passes: each takes a graph and the memory of its values to another graph and memory.

`Options.passes` names those that a model is loaded with, in their order. What a pass leaves to be
read, such as counts, is in the memory under the names of its values: `Model.memory`.

The room:

- `sparse`: networks of sparse blocks run the neurons that a predictor names
- `observe`, `count`, `keep_hidden`: what a step computes by the way is kept
- `attending`: the nodes that attend, for those that change how texts are kept and read, each beside
  a method of engine/cache: `receive` (eviction), `choose_pages` (pages), `heads_apart` (streaming),
  `merge` (merged), `pack` (two_bits), `sparse_prompts` (stretches)
- `quantise`, `stream`, `fuse`: passes over steps, which are nodes with their kernels
"""

from collections.abc import Callable, Iterable

import numpy as np

from engine.graph import Graph, Value
from reference.op import DTYPES, Array

Memory = dict[str, Array]
Pass = Callable[[Graph, Memory], tuple[Graph, Memory]]


def limits_of(memory: Memory) -> dict[str, int]:
    """The largest sizes of a step, by the inputs that it has room for."""
    return {"tokens": len(memory["tokens"]), "outputs": len(memory["rows"])}


def zeros(values: Iterable[Value], memory: Memory) -> Memory:
    """Memory for values at a step's largest sizes."""
    limits = limits_of(memory)
    return {v.name: np.zeros(v.sizes(limits), DTYPES[v.dtype]) for v in values}


def spans(name: str) -> Value:
    """An input that, like `spans`, holds the cells each token sees."""
    return Value(name, "input", "i32", ("tokens", 3))
