"""Partition of a model's step between a GPU and the CPU, with the GPU's kernels and memory
layout."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.compile.build import Built
from engine.compile.plan import spec_of
from engine.config import ModelError
from engine.gguf.file import GGUFFile
from engine.gpu import greedy
from engine.gpu.layout import Layout, laid_out
from engine.gpu.memory import Footprint, Weight, footprint, gb, weights_of
from engine.gpu.parts import (
    ALL,
    Part,
    asked_of_gpu,
    assigned,
    experts_on_cpu,
    input_on_cpu,
    split_at_devices,
)
from engine.graph import Graph, Node, Value
from kernels.certify import Certified
from kernels.cuda.fusion.fused import Fused
from kernels.cuda.fusion.fusions import FUSED
from kernels.cuda.runtime.device import Device
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.dispatch import Dispatcher, KernelSpec


@dataclass(frozen=True, slots=True)
class Partition:
    """A step's `parts` on both sides, the GPU's laid out, the weights that they read and their
    footprint; `notes` name what stays on the CPU although it was meant for the GPU."""

    device: Device
    parts: tuple[Part, ...]
    layout: Layout
    weights: Mapping[str, Weight]
    needed: Footprint
    result: Value
    notes: tuple[str, ...]

    @property
    def chooses(self) -> bool:
        """Whether greedy tokens are found on the device."""
        return greedy.CHOICES in {d for v in self.layout.values("input").values() for d in v.dims}

    @property
    def feeds(self) -> bool:
        """Whether only the device reads a step's tokens, in one place."""
        own = self.layout.values("input")
        return len(self.parts) == 1 and not any(name.startswith("tokens.") for name in own)

    def on_cpu(self) -> list[Graph]:
        """The CPU's parts; crossing values are their inputs."""
        crossing = {value.name for part in self.parts for value in part.gives}
        own = [part for part in self.parts if not part.on_gpu]
        return [Graph([_crossed(node, crossing) for node in part.nodes]) for part in own]


class _SplitError(ModelError):
    """A cut between blocks that share keys and values."""


def partition_step(
    built: Built,
    gpu_layers: int,
    cpu_experts: int,
    device: Device,
    dispatcher: Dispatcher,
    certified: Certified | None,
    file: GGUFFile,
    there: Collection[str] = (),
    chooses: bool = True,
) -> Partition:
    """Assign the last `gpu_layers` blocks, as parts.py counts them, to the device, without the
    experts of the first `cpu_experts` blocks; everything before the blocks stays on the CPU if
    neurons are split. Weights and caches that are `there` already serve another step, too. It
    `chooses` the tokens of greedy decoding if it has the logits.

    Raises `ModelError` where the device has too little memory, before anything is uploaded.
    """
    blocks, nodes = built.config.blocks, built.graph.nodes
    if built.apart:
        nodes = input_on_cpu(nodes, blocks)
    nodes = experts_on_cpu(nodes, blocks, cpu_experts)
    layers = blocks + 1 if gpu_layers == ALL else min(gpu_layers, blocks + 1)
    wanted = zip(nodes, asked_of_gpu(nodes, blocks, layers), strict=True)
    needs = dict.fromkeys(spec_of(node) for node, on_gpu in wanted if on_gpu)
    choosing, limits = [greedy.node(built.logits)] if chooses else [], built.limits
    limits |= {greedy.CHOICES: limits["outputs"]}
    chosen = dispatcher.choose_on(device, [*needs, *map(spec_of, choosing)], certified)

    def parts_of(layers: int) -> tuple[list[Part], list[str]]:
        there, notes = assigned(nodes, blocks, layers, lambda node: spec_of(node) in chosen)
        if cache := _split_cache(nodes, there):
            raise _SplitError(
                f"{cache} is read by blocks of the GPU and of the CPU: more blocks, or none, have"
                " to be the GPU's"
            )
        last = [node for node in choosing if there[-1] and spec_of(node) in chosen]
        sides = [*there, *(True for _ in last)]  # where the logits are
        return split_at_devices([*nodes, *last], sides, built.logits), notes

    whole, _ = parts_of(layers)
    fusions = _fusions(whole, device, chosen, dispatcher, certified, limits)

    def of(layers: int) -> Partition:
        parts, notes = parts_of(layers)
        layout = laid_out(parts, chosen, fusions, limits)
        weights = weights_of(layout, built.memory, file)
        weights = {name: weight for name, weight in weights.items() if name not in there}
        needed = footprint(layout, weights, there)
        return Partition(device, tuple(parts), layout, weights, needed, built.logits, tuple(notes))

    found = of(layers)
    free, _ = device.memory()
    if found.layout.parts and found.needed.total > free:

        def fits(fewer: int) -> bool:
            try:
                return of(fewer).needed.total <= free
            except _SplitError:
                return False

        fitting = 0 if built.apart else next(filter(fits, range(layers - 1, 0, -1)), 0)
        advice = f"gpu_layers={fitting} would fit" if fitting else "not even one block would fit"
        if built.apart:
            advice = "a smaller vram_budget is wanted"
        whose = "the MTP blocks" if there else "the model"
        raise ModelError(
            f"{device.name}: {whose} needs {found.needed} of its memory, {gb(free)} GB are free:"
            f" {advice}"
        )
    return found


def _split_cache(nodes: Sequence[Node], there: Sequence[bool]) -> str:
    """A cache that blocks on both sides read, if any; a cache that each block rewrites before
    reading may be on both sides."""
    sides: dict[str, bool] = {}
    for node, on_gpu in zip(nodes, there, strict=True):
        values = (v for v in node.arguments.values() if isinstance(v, Value))
        caches = (value.name for value in values if value.kind == "cache")
        for cache in (name for name in caches if name.startswith("blk.")):
            if sides.setdefault(cache, on_gpu) != on_gpu:
                return cache
    return ""


def _fusions(
    parts: Sequence[Part],
    device: Device,
    chosen: Mapping[KernelSpec, CudaKernel],
    dispatcher: Dispatcher,
    certified: Certified | None,
    limits: Mapping[str, int],
) -> list[Fused]:
    """The fused kernels that the parts can use and that are certified, in the table's order; where
    one fails, shorter ones may serve."""
    known = [fused for fused in FUSED if not fused.lacks(device)]
    while True:
        used = laid_out(parts, chosen, known, limits).fused()
        passed = dispatcher.passing(used, certified)
        if len(passed) == len(used):
            return [fused for fused in known if fused in used]
        known = [fused for fused in known if fused in passed or fused not in used]


def crossed(value: Value) -> Value:
    """The CPU plan's memory for a crossing value."""
    return replace(value, name=f"{value.name}@crossing", kind="input")


def _crossed(node: Node, crossing: set[str]) -> Node:
    def seen(value: Value | float) -> Value | float:
        if isinstance(value, Value) and value.name in crossing and value.kind == "activation":
            return crossed(value)
        return value

    return replace(node, arguments={n: seen(value) for n, value in node.arguments.items()})
