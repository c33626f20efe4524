"""Passes for weights that are not resident: embedding rows are gathered before a step, and neurons
and experts enter a pool when a predictor or a router selects them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from engine.compile.plan import CpuStep
from engine.graph import Value
from engine.offload import neurons as pools
from engine.offload.disk import tensor_of
from engine.offload.neurons import Neurons
from engine.offload.rows import Rows
from engine.passes import Memory
from kernels.cpu.runtime.io_pool import IOPool

# As a Pass, once kernels are chosen: what is read depends on how they have weights packed.
StepPass = Callable[[Sequence[CpuStep], Memory], tuple[list[CpuStep], Memory]]


def gather(rows: Rows) -> StepPass:
    """The pass after which a step's embeddings read rows that `rows` gathers before the step."""

    def apply(steps: Sequence[CpuStep], memory: Memory) -> tuple[list[CpuStep], Memory]:
        found, memory = list[CpuStep](), dict(memory)
        for step in steps:
            weight, chosen = step.arrays.get("weight"), step.arrays.get("tokens")
            if (
                step.node.op == "embedding"
                and (weight and weight.kind == "weight")
                and (chosen and chosen.kind == "input")
            ):
                name = f"{weight.name} by {chosen.name}"
                own = f"{name}.gathered", f"{name}.order"
                given = rows.of(weight.name, chosen.name)
                memory |= dict(zip(own, given, strict=True))
                gathered = replace(weight, name=own[0], dims=(len(given[0]), *weight.dims[1:]))
                step = _with(step, weight=gathered, tokens=replace(chosen, name=own[1]))
            found.append(step)
        return found, memory

    return apply


def fetch(neurons: Neurons, readers: IOPool) -> StepPass:
    """The pass after which sparse blocks and mixtures read their rows from the pool. Rows are
    requested before a block's first matrix, and each matrix waits for its own."""

    def apply(steps: Sequence[CpuStep], memory: Memory) -> tuple[list[CpuStep], Memory]:
        found, served = list[CpuStep](), dict[int, set[int]]()
        named: dict[str, tuple[Value, Value]] = {}  # experts, by the ends of their tokens
        for step in steps:
            tensor, arrays = tensor_of(step), step.arrays
            if step.node.op == "sort_by_expert":
                named[arrays["ends"].name] = arrays["needed"], arrays["count"]
            if (pool := pools.pooled(tensor)) in neurons.arrays:
                block = int(pool.split(".")[1])
                weight, slots = replace(arrays["weight"], name=pool), neurons.slots(block)
                step = _with(step, weight=weight, slots=slots)
                section, came = neurons.sources[block].section_of(tensor), served.get(block)
                if came is None:
                    rows = named[arrays["ends"].name] if "ends" in arrays else _rows(arrays)
                    step = replace(step, before=neurons.service(block, section, *rows, readers))
                elif section not in came:
                    step = replace(step, before=neurons.waits(block, section, readers))
                served.setdefault(block, set()).add(section)
            found.append(step)
        return found, memory | neurons.arrays

    return apply


def _rows(arrays: Mapping[str, Value]) -> tuple[Value, Value]:
    """The selected neurons that a sparse op names."""
    return arrays["rows"], arrays["count"]


def _with(step: CpuStep, **arguments: Value) -> CpuStep:
    """The step with these arguments in place of its own."""
    node = replace(step.node, arguments={**step.node.arguments, **arguments})
    return replace(step, node=node)
