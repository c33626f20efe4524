"""A step's parts on a device. Sizes that recur are captured as a CUDA graph, after which a part is
one launch; except for parts that call cuBLAS, which cannot be captured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from engine.compile.plan import shape_of
from engine.gpu.layout import Layout
from engine.gpu.memory import DeviceRows, Uploaded, Weight, caches, uploaded
from engine.gpu.mirror import Inputs
from engine.graph import Value
from engine.passes.fuse import GpuStep, Group
from engine.progress import ProgressCallback
from kernels.cuda.runtime.call import calls, device_sizes
from kernels.cuda.runtime.device import Buffer, Device
from kernels.cuda.runtime.product import Product
from reference.op import Array

MOST_KEPT = 64  # parts at sizes, captured or not

Sizes = Mapping[str, int]
Call = Callable[[], None]


@dataclass(frozen=True, slots=True)
class _Bound:
    """A step with the addresses of its arrays, its scalars, and the sizes that its weights' layout
    implies."""

    step: GpuStep
    arguments: dict[str, Any]
    sizes: Sizes


@dataclass(frozen=True, slots=True)
class _WorkedOut:
    """The launches of a part at some sizes, and whether it calls the library."""

    calls: list[Call]
    multiplies: bool

    def run(self) -> None:
        for call in self.calls:
            call()


class DevicePlan:
    """The parts of a layout, with the host's `inputs`, and with `caches` and `weights` of its own,
    except those that are `there` or `known` already: a Side (hybrid.py). Construction uploads
    weights and compiles everything.

    `arena` is the activations' memory, `recorded` the captured parts by index and sizes.
    """

    def __init__(
        self,
        device: Device,
        layout: Layout,
        weights: Mapping[str, Weight],
        inputs: Mapping[str, Array],
        progress: ProgressCallback | None,
        there: Mapping[str, DeviceRows] | None = None,
        known: Mapping[str, Uploaded] | None = None,
    ) -> None:
        self._device, self._layout, self._sizes = device, layout, dict[str, int]()
        self.inputs, self.caches = Inputs(device, inputs), caches(device, layout, there or {})
        self.weights = {**(known or {}), **uploaded(device, weights, progress)}
        self._buffers = {
            **{name: weight.buffer for name, weight in self.weights.items()},
            **{name: cache.buffer for name, cache in self.caches.items()},
            **self.inputs.buffers,
        }
        self.arena = device.empty(layout.arena_bytes)
        self._parts = [
            [(group, [self._bound(step) for step in group.steps]) for group in part.groups]
            for part in layout.parts
        ]
        self._kept: dict[tuple[int, ...], _WorkedOut] = {}  # not captured, or not yet
        self.recorded: dict[tuple[int, ...], Call] = {}
        for kernel in (*(step.kernel for step in layout.steps()), *layout.fused()):
            for stage in kernel.stages:
                device.prepare(stage)

    def _bound(self, step: GpuStep) -> _Bound:
        arguments = {
            name: self.buffer(value).address if isinstance(value, Value) else value
            for name, value in step.node.arguments.items()
        }
        values = {n: v.name for n, v in step.arrays.items() if v.name in self.weights}
        shapes = {argument: self.weights[name].shape for argument, name in values.items()}
        return _Bound(step, arguments, device_sizes(step.kernel, shapes))

    def buffer(self, value: Value) -> Buffer:
        """The memory of a value at its largest size."""
        if value.kind != "activation":
            return self._buffers[value.name]
        limits = self._layout.limits
        return self.arena.at(self._layout.offsets[value.name], value.bytes(limits))

    def resize(self, **sizes: int) -> None:
        self._sizes = sizes
        self.inputs.send(sizes.get("tokens", 0))

    def write(self, value: Value, array: Array) -> None:
        self._device.write(self.buffer(value), array)

    def read(self, value: Value, array: Array) -> None:
        """Wait for a value that was made here."""
        self._device.read(self.buffer(value), array)

    def ask(self, value: Value, array: Array) -> Call:
        buffer = self.buffer(value)
        waits = self._device.ask(buffer.at(0, array.nbytes))

        def wait() -> None:
            array.view(np.uint8)[:] = waits()

        return wait

    def run(self, part: int) -> None:
        """Launch a part without waiting for it."""
        sizes = self._sizes
        key = (part, *sizes.values())
        if key in self.recorded:
            self.recorded[key]()
            return
        if (kept := self._kept.get(key)) is None:
            kept = self._kept[key] = self._worked_out(part, sizes)
            kept.run()
            if len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]
        elif kept.multiplies or len(self.recorded) >= MOST_KEPT:
            kept.run()
        else:
            with self._device.capture() as recorded:
                kept.run()
            self.recorded[key] = recorded
            del self._kept[key]
            recorded()

    def _shape(self, bound: _Bound, sizes: Sizes) -> dict[str, int]:
        return {**bound.sizes, **shape_of(bound.step.node, sizes)}

    def _worked_out(self, part: int, sizes: Sizes) -> "_WorkedOut":
        groups = (self._of_group(group, steps, sizes) for group, steps in self._parts[part])
        multiplies = any(
            isinstance(stage, Product) and stage.when(self._shape(bound, sizes))
            for _, steps in self._parts[part]
            for bound in steps
            for stage in bound.step.kernel.stages
        )
        return _WorkedOut(list(chain.from_iterable(groups)), multiplies)

    def _of_group(self, group: Group, steps: Sequence[_Bound], sizes: Sizes) -> list[Call]:
        shapes = [self._shape(bound, sizes) for bound in steps]
        if group.fused and group.fused.takes(shape := group.named(shapes)):
            arguments = group.named([bound.arguments for bound in steps])
            return calls(self._device, group.fused.stages, arguments, shape)
        if group.otherwise:
            rest = iter(steps)
            return [
                do
                for own in group.otherwise
                for do in self._of_group(own, list(islice(rest, len(own.steps))), sizes)
            ]
        return [
            do
            for bound, shape in zip(steps, shapes, strict=True)
            for do in calls(self._device, bound.step.kernel.stages, bound.arguments, shape)
        ]

    def set(self, label: str, name: str, value: float) -> None:
        every = (bound for part in self._parts for _, steps in part for bound in steps)
        for bound in (bound for bound in every if bound.step.node.label == label):
            bound.arguments[name] = value
            self._kept.clear()
            self.recorded.clear()
