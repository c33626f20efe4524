"""A model's nodes divided between a GPU and the CPU, with kernels for the GPU's and places in its
memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from engine.gguf_file import GGUFFile
from engine.gpu.layout import Layout, laid_out
from engine.gpu.memory import demand_room, footprint
from engine.gpu.parts import ALL, Part, divided, layers_of, placed, wanted_there
from engine.graph import Graph, Node, Value
from engine.plan import need
from kernels.certify import Certified
from kernels.choose import Chooser, Need
from kernels.cuda.device import Device
from kernels.cuda.kernel import CudaKernel

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Division:
    """A step's `parts` on both sides, and the GPU's laid out; `notes` say what stays on the CPU
    although it was meant for the GPU."""

    device: Device
    parts: tuple[Part, ...]
    layout: Layout
    result: Value
    notes: tuple[str, ...]

    def on_cpu(self) -> list[Graph]:
        """The CPU's parts; values that cross are inputs there."""
        crossing = {value.name for part in self.parts for value in part.gives}
        own = [part for part in self.parts if not part.on_gpu]
        return [Graph([_crossed(node, crossing) for node in part.nodes]) for part in own]


def divide(
    graph: Graph,
    result: Value,
    blocks: int,
    gpu_layers: int,
    device: Device,
    chooser: Chooser,
    certified: Certified | None,
    arrays: Mapping[str, Array],
    file: GGUFFile,
    limits: Mapping[str, int],
) -> Division:
    """The last `gpu_layers` blocks, as parts.py counts them, for the device.

    `arrays` are weights by name, in the file or beside it. Raises `ModelError` where the device has
    not enough memory, before anything is put there.
    """
    layers = blocks + 1 if gpu_layers == ALL else min(gpu_layers, blocks + 1)
    meant = wanted_there(layers_of(graph.nodes, blocks), blocks, layers)
    needs = dict.fromkeys(need(n) for n, on in zip(graph.nodes, meant, strict=True) if on)
    chosen = chooser.choose_on(device, list(needs), certified)

    def of(layers: int) -> Division:
        return _divide(graph, result, blocks, layers, device, chosen, limits)

    found = of(layers)
    demand_room(
        device,
        footprint(found.layout, arrays, file),
        layers,
        lambda fewer: footprint(of(fewer).layout, arrays, file),
    )
    return found


def _divide(
    graph: Graph,
    result: Value,
    blocks: int,
    layers: int,
    device: Device,
    chosen: Mapping[Need, CudaKernel],
    limits: Mapping[str, int],
) -> Division:
    there, notes = placed(graph.nodes, blocks, layers, lambda node: need(node) in chosen)
    parts = divided(graph.nodes, there, result)
    return Division(device, tuple(parts), laid_out(parts, chosen, limits), result, tuple(notes))


def _crossed(node: Node, crossing: set[str]) -> Node:
    def seen(value: Value | float) -> Value | float:
        if isinstance(value, Value) and value.name in crossing and value.kind == "activation":
            return replace(value, kind="input")
        return value

    return replace(node, arguments={n: seen(value) for n, value in node.arguments.items()})
