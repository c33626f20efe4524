"""Launches of a step's parts on a device. At sizes that come again they are recorded, and from then
on a part is one call."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from engine.gpu.layout import DeviceStep, Layout
from engine.graph import Value
from engine.plan import shape_of
from kernels.cuda.device import Buffer, Device

MOST_RECORDED = 64  # parts at sizes

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Bound:
    """A step with the addresses of its arrays and its scalars, and named sizes that do not follow
    from those of a step."""

    step: DeviceStep
    arguments: dict[str, Any]
    sizes: dict[str, int]


class DevicePlan:
    """The parts of a layout, `buffers` being weights, caches and inputs by name. Everything is
    compiled by the time it is made."""

    def __init__(self, device: Device, layout: Layout, buffers: Mapping[str, Buffer]) -> None:
        self._device, self._layout, self._buffers = device, layout, buffers
        self._arena = device.empty(layout.arena_bytes)
        self._parts = [[self._bound(step) for step in part.steps] for part in layout.parts]
        self._seen: set[tuple[int, ...]] = set()
        self._recorded: dict[tuple[int, ...], Callable[[], None]] = {}
        for step in layout.steps():
            for launch in step.kernel.launches:
                device.prepare(launch)

    def _bound(self, step: DeviceStep) -> _Bound:
        arguments = {
            name: self.buffer(value).address if isinstance(value, Value) else value
            for name, value in step.node.arguments.items()
        }
        sizes = {}
        if step.kernel.pack:
            sizes["packed"] = self.buffer(step.values()["weight"]).bytes
        return _Bound(step, arguments, sizes)

    def buffer(self, value: Value) -> Buffer:
        """The memory of a value at its largest size."""
        if value.kind != "activation":
            return self._buffers[value.name]
        limits = self._layout.limits
        return self._arena.at(self._layout.offsets[value.name], value.bytes(limits))

    def run(self, part: int, sizes: Sizes) -> None:
        """Have a part done; this does not wait for it."""
        key = (part, *sizes.values())
        if key in self._recorded:
            self._recorded[key]()
        elif key in self._seen and len(self._recorded) < MOST_RECORDED:
            with self._device.capture() as recorded:
                self._launch(part, sizes)
            self._recorded[key] = recorded
            recorded()
        else:
            self._launch(part, sizes)
            self._seen.add(key)

    def _launch(self, part: int, sizes: Sizes) -> None:
        for bound in self._parts[part]:
            shape = shape_of(bound.step.node, sizes) | bound.sizes
            for launch in bound.step.kernel.launches:
                values = launch.values(bound.arguments, shape)
                self._device.launch(launch, launch.grid(shape), values)

    def set(self, label: str, name: str, value: float) -> None:
        """Give a node's scalar another value from the next step on."""
        for bound in (bound for part in self._parts for bound in part):
            if bound.step.node.label == label:
                bound.arguments[name] = value
        self._seen.clear()
        self._recorded.clear()
