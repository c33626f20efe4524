"""Steps of which some weights are not in memory for good: tables give the rows that a step's tokens
choose, and neurons come to a pool when a predictor names them."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.compile.plan import CpuStep
from engine.graph import Value
from engine.offload import neurons as pools
from engine.offload.disk import tensor_of
from engine.offload.neurons import Neurons
from engine.offload.rows import Rows
from engine.passes import Memory
from kernels.cpu.runtime.readers import Readers

# As a Pass, when kernels are chosen: what is read depends on how they have weights packed.
StepPass = Callable[[Sequence[CpuStep], Memory], tuple[list[CpuStep], Memory]]


def gather(rows: Rows) -> StepPass:
    """The pass after which embeddings read the rows that `rows` gather before each step."""

    def apply(steps: Sequence[CpuStep], memory: Memory) -> tuple[list[CpuStep], Memory]:
        found, memory = list[CpuStep](), dict(memory)
        for step in steps:
            weight, chosen = step.arrays.get("weight"), step.arrays.get("tokens")
            if step.node.op == "embedding" and weight and weight.kind == "weight":
                assert chosen
                name = f"{weight.name} by {chosen.name}"
                own = f"{name}.gathered", f"{name}.order"
                given = rows.of(weight.name, chosen.name)
                memory |= dict(zip(own, given, strict=True))
                gathered = replace(weight, name=own[0], dims=(len(given[0]), *weight.dims[1:]))
                step = _with(step, weight=gathered, tokens=replace(chosen, name=own[1]))
            found.append(step)
        return found, memory

    return apply


def fetch(neurons: Neurons, readers: Readers) -> StepPass:
    """The pass after which sparse blocks read their rows from the pool, to which they are brought
    before a block's first matrix."""

    def apply(steps: Sequence[CpuStep], memory: Memory) -> tuple[list[CpuStep], Memory]:
        found, served = list[CpuStep](), set[int]()
        for step in steps:
            pool, arrays = pools.pooled(tensor_of(step)), step.arrays
            if pool in neurons.arrays:
                block = int(pool.split(".")[1])
                weight, slots = replace(arrays["weight"], name=pool), neurons.slots(block)
                step = _with(step, weight=weight, slots=slots)
                if block not in served:
                    service = neurons.service(block, arrays["rows"], arrays["count"], readers)
                    step = replace(step, before=service)
                    served.add(block)
            found.append(step)
        return found, memory | neurons.arrays

    return apply


def _with(step: CpuStep, **arguments: Value) -> CpuStep:
    """The step with these arguments in place of its own."""
    node = replace(step.node, arguments={**step.node.arguments, **arguments})
    return replace(step, node=node)
