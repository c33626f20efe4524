"""What each node of a step must do at least, and the machine's limit for it."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bench.limits import ARITHMETIC, Limit, Limits
from engine.graph import Node, Value
from engine.plan import Step, shape_of
from reference.op import DTYPES, Argument, Cost
from reference.table import OPS


def cost_of(node: Node, sizes: Mapping[str, int], depth: int) -> Cost:
    """What the node must do in a step of these sizes that begins after `depth` cells."""
    cost = OPS[node.op].cost
    shape = shape_of(node, sizes)
    if node.op != "attention":
        return cost(shape, node.format)
    # not the whole cache: what is seen is read once, and the t-th token meets depth + t cells
    tokens = shape["tokens"]
    seen = {**shape, "capacity": depth + tokens}
    met = {**shape, "tokens": 1, "capacity": tokens * depth + tokens * (tokens + 1) // 2}
    return Cost(cost(seen, node.format).bytes, cost(met, node.format).operations)


def _arrays(node: Node) -> list[tuple[Argument, Value | None]]:
    """The op's arrays with the node's values; None for x where a kernel reads it quantised."""
    spec = OPS[node.op]
    found = [(a, node.arguments.get(a.name)) for a in (*spec.inputs, *spec.outputs) if a.axes]
    return [(a, value if isinstance(value, Value) else None) for a, value in found]


def stored_bytes(node: Node, sizes: Mapping[str, int], cost: Cost) -> float:
    """Of a cost's bytes, those of weights and cache: all that are not of activations."""
    shape = shape_of(node, sizes)
    activations = sum(
        math.prod(argument.dims(shape, node.format))
        * np.dtype(DTYPES.get(argument.dtype, np.uint8)).itemsize
        for argument, value in _arrays(node)
        if value is None or value.kind == "activation"
    )
    return max(0.0, cost.bytes - activations)


def bounds(
    steps: Sequence[Step],
    sizes: Mapping[str, int],
    costs: Sequence[Cost],
    limits: Limits,
    threads: int,
) -> list[Limit | None]:
    """The machine's limit of each node.

    Weights and cache come from memory, unless all that a step reads of them stays in the last
    level of cache; activations are where the node before has left them.
    """
    stored = [stored_bytes(s.node, sizes, c) for s, c in zip(steps, costs, strict=True)]
    total = sum(stored)
    found = []
    for step, cost, part in zip(steps, costs, stored, strict=True):
        working_set: int | None = round(cost.bytes)
        if part > cost.bytes * 2 / 3:
            working_set = round(total) if total <= limits.last_level() else None
        arithmetic = ARITHMETIC[step.kernel.activations]
        found.append(limits.limit(cost, arithmetic, threads, working_set))
    return found
