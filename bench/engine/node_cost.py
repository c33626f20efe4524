"""The minimum cost of each node of a step, and the machine's limit for it."""

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

# Ops that read only the part of a weight that a step needs,
SPARSE, EXPERTS = ("sparse_linear", "sparse_axpy"), "linear_experts"
# and only the cells that their tokens see, by the arguments that tell which.
SEEING = {
    "attention": ("spans",),
    "attention_kivi": ("spans", "packed"),
    "attention_minicache": ("spans", "packed"),
    "page_extremes": ("stale",),
    "page_scores": ("spans",),
    "choose_pages": ("spans",),
}
Given = Mapping[str, Array]  # arguments of a node at its run


def cost_of(
    step: CpuStep, sizes: Mapping[str, int], depth: int, active: int = 0, seen: Given | None = None
) -> Cost:
    """The cost of a step's node at these sizes, after `depth` cells, whose tokens do not observe
    (engine/cache/eviction.py), or whose tokens have `seen` these cells; of a sparse op for so many
    `active` neurons; of experts for so many, or if 0 for all that tokens of these sizes may
    have."""
    node, read = step.node, format_read(step.kernel)
    if seen:
        return _of_cells(node, shape_of(node, sizes), read, seen)
    cost = OPS[node.op].cost
    shape = shape_of(node, sizes)
    if node.op == EXPERTS and active:
        return cost({**shape, "experts": active}, read)
    if node.op in SPARSE:
        return cost({**shape, "active": active}, read)
    if node.op == "attention_received":
        return Cost(4 * 3 * shape["tokens"], 0)  # their spans are empty
    if node.op != "attention":
        return cost(shape, read)
    # not the whole cache: shared cells are read once, and the t-th token sees depth + t cells
    tokens = shape["tokens"]
    once = {**shape, "capacity": depth + tokens}
    met = {**shape, "tokens": 1, "capacity": tokens * depth + tokens * (tokens + 1) // 2}
    return Cost(cost(once, read).bytes, cost(met, read).operations)


def _of_cells(node: Node, shape: dict[str, int], read: str | None, seen: Given) -> Cost:
    """The cost of a node that reads the cells its tokens see."""
    cost = OPS[node.op].cost
    for name in ("page", "chosen"):
        number = node.arguments.get(name)
        if isinstance(number, int):
            shape[name] = number
    if node.op == "page_extremes":
        pages = int((seen["stale"][:, 1] - seen["stale"][:, 0]).sum())
        return cost({**shape, "sequences": 1, "pages": pages}, read)
    spans = seen["spans"]
    if node.op in ("page_scores", "choose_pages"):
        pages = max(0, int(spans[:, 2].max(initial=0)) - 1) // shape["page"]
        return cost({**shape, "tokens": int((spans[:, 2] > 0).sum()), "pages": pages}, read)
    met = int((spans[:, 2] - spans[:, 1]).sum())
    if "packed" in seen:
        shape["slots"] = int(seen["packed"].max(initial=0))
    once = cost({**shape, "capacity": _together(spans)}, read)
    return Cost(once.bytes, cost({**shape, "tokens": 1, "capacity": met}, read).operations)


def _together(spans: Array) -> int:
    """How many cells spans int32 [tokens, 3] see, with those shared by tokens counted once."""
    count = 0
    for sequence in np.unique(spans[:, 0]):
        own = spans[spans[:, 0] == sequence]
        begins, ends = own[own[:, 1].argsort(kind="stable"), 1:].T
        reached = np.maximum.accumulate(np.concatenate([[0], ends[:-1]]))
        count += int(np.maximum(0, ends - np.maximum(begins, reached)).sum())
    return count


def active_neurons(model: Model, tokens: int) -> dict[int, int]:
    """For each sparse node, by its index in the step, how many neurons or experts the last step
    needs, which had so many tokens."""
    wanted = dict.fromkeys((*SPARSE, EXPERTS), ("a", "rows", "count", "ends"))
    found = _arguments(model, tokens, wanted)
    return {step: _active(arrays, tokens) for step, arrays in found.items()}


def cells_seen(model: Model, tokens: int) -> dict[int, Given]:
    """For each node that reads only the cells its tokens see, by its index in the step, the
    arguments that tell which, in the last step, which had so many tokens."""
    return _arguments(model, tokens, SEEING)


def _arguments(model: Model, tokens: int, wanted: Mapping[str, Sequence[str]]) -> dict[int, Given]:
    """Arguments of these names of nodes with these ops in the last step, by index. It is run again,
    entry by entry: a node's inputs may be overwritten at the end."""
    plan = model.plan_for(tokens)
    if not any(step.node.op in wanted for step in plan.steps):
        return {}
    found: dict[int, Given] = {}
    for call, entry in zip(plan.calls, plan.entries, strict=True):
        node = plan.steps[call.step].node
        if node.op in wanted and call.step not in found:
            found[call.step] = {
                name: plan.array(value)[: value.sizes({"tokens": tokens, "outputs": 1})[0]].copy()
                for name, value in node.arguments.items()
                if isinstance(value, Value) and name in wanted[node.op]
            }
        model.team.run(Program([entry]))
    return found


def _active(arrays: Given, tokens: int) -> int:
    if "ends" in arrays:  # ascending: an expert with tokens differs from the one before
        return len(np.setdiff1d(arrays["ends"], 0))
    rows = arrays["rows"][: arrays["count"][0]]
    # sparse_axpy passes over neurons whose factors are all zero
    return int(arrays["a"][:tokens, rows].any(axis=0).sum()) if "a" in arrays else len(rows)


def stored_bytes(node: Node, sizes: Mapping[str, int], cost: Cost) -> float:
    """Bytes of weights and cache in a cost: all but those of activations, such as x where a kernel
    reads it quantised."""
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

    Weights and cache come from memory, unless everything a step reads of them fits the last-level
    cache; activations are where the previous node has left them.
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
