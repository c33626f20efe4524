"""What a GPU's memory has to hold, counted before anything is loaded."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config import ModelError
from engine.gguf_file import GGUFFile
from engine.gpu.layout import MULTIPLE, DeviceStep, Layout
from engine.graph import Value
from kernels.cuda.device import Device

SPARE = 2**26  # bytes for the kernels themselves and for recorded steps

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of `weights`, of the `cache`, and of a `step`: activations and inputs."""

    weights: int
    cache: int
    step: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.step

    def __str__(self) -> str:
        parts = {"weights": self.weights, "the cache": self.cache, "a step": self.step}
        listed = ", ".join(f"{_gb(size)} for {what}" for what, size in parts.items())
        return f"{_gb(self.total)} GB of its memory ({listed})"


def footprint(layout: Layout, arrays: Mapping[str, Array], file: GGUFFile) -> Footprint:
    """Of the steps that are laid out, weights being `arrays` or tensors of the file."""
    weights: dict[str, int] = {}
    for step in layout.steps():
        for value in step.values().values():
            if value.kind == "weight":
                weights[value.name] = weight_bytes(step, value, arrays, file)
    cache = [value.bytes(layout.limits) for value in layout.values("cache").values()]
    inputs = [value.bytes(layout.limits) for value in layout.values("input").values()]
    return Footprint(_sum(weights.values()), _sum(cache), layout.arena_bytes + _sum(inputs))


def weight_bytes(
    step: DeviceStep, value: Value, arrays: Mapping[str, Array], file: GGUFFile
) -> int:
    """Of a weight as the step's kernel reads it."""
    pack = step.kernel.pack
    if not is_packed(step, value):
        return arrays[value.name].nbytes
    assert pack is not None
    rows, row_bytes = file.tensor(step.weight).shape
    return pack.bytes(rows, row_bytes)


def is_packed(step: DeviceStep, value: Value) -> bool:
    """Whether it is the weight that the step's kernel wants in a layout of its own."""
    return bool(step.weight) and step.node.arguments["weight"] is value


def demand_room(
    device: Device, wanted: Footprint, layers: int, of: Callable[[int], Footprint]
) -> None:
    """Raise `ModelError` unless the device has room for what is wanted; it says how many of
    gpu_layers would have, of which `layers` were meant and `of` tells the footprint."""
    free, _ = device.memory()
    if wanted.total + SPARE <= free:
        return
    fitting = next((n for n in range(layers - 1, 0, -1) if of(n).total + SPARE <= free), 0)
    advice = f"gpu_layers={fitting} would fit" if fitting else "not even one block would fit"
    raise ModelError(f"{device.name}: the model needs {wanted}, {_gb(free)} GB are free: {advice}")


def _sum(sizes: Iterable[int]) -> int:
    """With each from a multiple of bytes on."""
    return sum(-(-size // MULTIPLE) * MULTIPLE for size in sizes)


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g}"
