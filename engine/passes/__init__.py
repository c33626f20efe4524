"""Graph passes: each transforms a graph and the memory of its values.

`Options.passes` lists a model's passes in order. Results of a pass, such as counts, are in the
memory under the names of its values: `Model.memory`.

The room:

- `sparse`: feed-forward networks run only predicted neurons
- `observe`, `count`, `keep_hidden`: intermediate values of a step are kept
- `attending`: attention nodes, for passes that change what they read, each with its method in
  engine/cache: `receive` (eviction), `choose_pages` (pages), `split_heads` (streaming),
  `merge` (merged), `pack` (two_bits), `sparse_prompts` (sparse_prefill)
- `quantise`, `stream`, `fuse`: passes over steps, which are nodes with kernels
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
