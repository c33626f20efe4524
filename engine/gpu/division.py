"""A model's step divided between a GPU and the CPU, the GPU's parts with kernels and with places in
its memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from engine.config import ModelError
from engine.gpu.layout import Layout, laid_out
from engine.gpu.memory import Footprint, footprint, gb
from engine.gpu.parts import ALL, Part, divided, input_on_cpu, meant, placed
from engine.gpu.weights import Weights
from engine.graph import Graph, Node, Value
from engine.plan import need
from kernels.certify import Certified
from kernels.choose import Chooser, Need
from kernels.cuda.device import Device
from kernels.cuda.fused import Fused
from kernels.cuda.fusions import FUSED
from kernels.cuda.kernel import CudaKernel


@dataclass(frozen=True, slots=True)
class Whole:
    """The step of a model of so many blocks, at most as large as `limits`, and its `result`.
    Neurons are `apart` if the CPU has some for good."""

    graph: Graph
    result: Value
    blocks: int
    limits: Mapping[str, int]
    apart: bool = False


@dataclass(frozen=True, slots=True)
class Division:
    """A step's `parts` on both sides, the GPU's laid out and what they need; `notes` say what stays
    on the CPU although it was meant for the GPU."""

    device: Device
    parts: tuple[Part, ...]
    layout: Layout
    needed: Footprint
    result: Value
    notes: tuple[str, ...]

    def on_cpu(self) -> list[Graph]:
        """The CPU's parts; values that cross are inputs there."""
        crossing = {value.name for part in self.parts for value in part.gives}
        own = [part for part in self.parts if not part.on_gpu]
        return [Graph([_crossed(node, crossing) for node in part.nodes]) for part in own]


def divide(
    whole: Whole,
    gpu_layers: int,
    device: Device,
    chooser: Chooser,
    certified: Certified | None,
    weights: Weights,
) -> Division:
    """The last `gpu_layers` blocks, as parts.py counts them, for the device; what comes before all
    blocks stays on the CPU if neurons are apart.

    Raises `ModelError` where the device has not enough memory, before anything is put there.
    """
    if whole.apart:
        whole = replace(whole, graph=Graph(input_on_cpu(whole.graph.nodes, whole.blocks)))
    layers = whole.blocks + 1 if gpu_layers == ALL else min(gpu_layers, whole.blocks + 1)
    nodes = whole.graph.nodes
    wanted = zip(nodes, meant(nodes, whole.blocks, layers), strict=True)
    needs = dict.fromkeys(need(node) for node, on_gpu in wanted if on_gpu)
    chosen = chooser.choose_on(device, list(needs), certified)
    fusions = _fusions(whole, layers, device, chosen, chooser, certified)

    def of(layers: int) -> Division:
        return _divide(whole, layers, device, chosen, fusions, weights)

    found = of(layers)
    free, _ = device.memory()
    if found.layout.parts and found.needed.total > free:

        def fits(fewer: int) -> bool:
            return of(fewer).needed.total <= free

        fitting = 0 if whole.apart else next(filter(fits, range(layers - 1, 0, -1)), 0)
        advice = f"gpu_layers={fitting} would fit" if fitting else "not even one block would fit"
        raise ModelError(
            f"{device.name}: the model needs {found.needed} of its memory, {gb(free)} GB are free:"
            f" {'a smaller vram_budget is wanted' if whole.apart else advice}"
        )
    return found


def _parts(
    whole: Whole, layers: int, chosen: Mapping[Need, CudaKernel]
) -> tuple[list[Part], list[str]]:
    """The parts of the step, and notes."""
    nodes = whole.graph.nodes
    there, notes = placed(nodes, whole.blocks, layers, lambda node: need(node) in chosen)
    return divided(nodes, there, whole.result), notes


def _fusions(
    whole: Whole,
    layers: int,
    device: Device,
    chosen: Mapping[Need, CudaKernel],
    chooser: Chooser,
    certified: Certified | None,
) -> list[Fused]:
    """Those that the step has use for, of which all have passed their trials, in the table's order;
    where one fails, shorter ones may serve."""
    parts, _ = _parts(whole, layers, chosen)
    known = [fused for fused in FUSED if not fused.lacks(device)]
    while True:
        used = laid_out(parts, chosen, known, whole.limits).fused()
        passed = chooser.passing(used, certified)
        if len(passed) == len(used):
            return [fused for fused in known if fused in used]
        known = [fused for fused in known if fused in passed or fused not in used]


def _divide(
    whole: Whole,
    layers: int,
    device: Device,
    chosen: Mapping[Need, CudaKernel],
    fusions: Sequence[Fused],
    weights: Weights,
) -> Division:
    parts, notes = _parts(whole, layers, chosen)
    layout = laid_out(parts, chosen, fusions, whole.limits)
    needed = footprint(layout, weights)
    return Division(device, tuple(parts), layout, needed, whole.result, tuple(notes))


def crossed(value: Value) -> Value:
    """What the CPU's plan has for a value that crosses."""
    return replace(value, name=f"{value.name}@crossing", kind="input")


def _crossed(node: Node, crossing: set[str]) -> Node:
    def seen(value: Value | float) -> Value | float:
        if isinstance(value, Value) and value.name in crossing and value.kind == "activation":
            return crossed(value)
        return value

    return replace(node, arguments={n: seen(value) for n, value in node.arguments.items()})
