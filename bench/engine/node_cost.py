"""What each node of a step must do at least, and the machine's limit for it."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from bench.machine.limits import Limits
from bench.ops.workload import ARITHMETIC, format_read
from bench.race.results import Limit
from engine.compile.plan import CpuStep, shape_of
from engine.graph import Node, Value
from engine.model import Model
from kernels.cpu.runtime.team import Program
from reference.op import DTYPES, Array, Cost
from reference.table import OPS

# Ops that read no more of a weight than a step needs.
SPARSE, EXPERTS = ("sparse_linear", "sparse_axpy"), "linear_experts"


def cost_of(
    step: CpuStep, sizes: Mapping[str, int], depth: int, active: int = 0, pages: int = 0
) -> Cost:
    """What the step's node must do in one of these sizes that begins after `depth` cells, whose
    tokens do not observe (engine/cache/eviction.py); of a sparse op, for so many `active` neurons;
    of experts for so many, or for all that tokens of these sizes may have where that is 0."""
    node, read = step.node, format_read(step.kernel)
    cost = OPS[node.op].cost
    shape = shape_of(node, sizes)
    if node.op == EXPERTS and active:
        return cost({**shape, "experts": active}, read)
    if node.op in SPARSE:
        return cost({**shape, "active": active}, read)
    if node.op == "attention_received":
        return Cost(4 * 3 * shape["tokens"], 0)  # that their spans are empty
    if node.op == "attention_minicache":  # behind so many pages that blocks share
        return cost({**shape, "slots": pages, "capacity": depth + shape["tokens"]}, read)
    if node.op != "attention":
        return cost(shape, read)
    # not the whole cache: what is seen is read once, and the t-th token meets depth + t cells
    tokens = shape["tokens"]
    seen = {**shape, "capacity": depth + tokens}
    met = {**shape, "tokens": 1, "capacity": tokens * depth + tokens * (tokens + 1) // 2}
    return Cost(cost(seen, read).bytes, cost(met, read).operations)


def active_neurons(model: Model, tokens: int) -> dict[int, int]:
    """Of each sparse node, by its step's number, how many neurons or experts the last step needs,
    which had so many tokens. It is run once more, entry by entry: a node's inputs may be gone at
    the end."""
    plan = model.plan_for(tokens)
    found: dict[int, int] = {}
    for call, entry in zip(plan.calls, plan.entries, strict=True):
        node = plan.steps[call.step].node
        if node.op in (*SPARSE, EXPERTS) and call.step not in found:
            arrays = {
                name: plan.array(value)
                for name, value in node.arguments.items()
                if isinstance(value, Value) and name in ("a", "rows", "count", "ends")
            }
            found[call.step] = _active(arrays, tokens)
        model.team.run(Program([entry]))
    return found


def _active(arrays: Mapping[str, Array], tokens: int) -> int:
    if "ends" in arrays:  # which ascend: an expert with tokens has another than the one before
        return len(np.setdiff1d(arrays["ends"], 0))
    rows = arrays["rows"][: arrays["count"][0]]
    # sparse_axpy passes over neurons whose factors are all zero
    return int(arrays["a"][:tokens, rows].any(axis=0).sum()) if "a" in arrays else len(rows)


def stored_bytes(node: Node, sizes: Mapping[str, int], cost: Cost) -> float:
    """Of a cost's bytes, those of weights and cache: all that are not of activations, such as x
    where a kernel reads it quantised."""
    spec, shape, activations = OPS[node.op], shape_of(node, sizes), 0
    for argument in (*spec.inputs, *spec.outputs):
        value = node.arguments.get(argument.name)
        if argument.axes and (not isinstance(value, Value) or value.kind == "activation"):
            size = np.dtype(DTYPES.get(argument.dtype, np.uint8)).itemsize
            activations += math.prod(argument.dims(shape, node.format)) * size
    return max(0.0, cost.bytes - activations)


def bounds(
    steps: Sequence[CpuStep],
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
