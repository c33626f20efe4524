"""A step whose parts run on a GPU and on the CPU's threads, in sequence or in parallel."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain, count
from typing import Protocol

import numpy as np

from engine.compile.plan import CpuStep, Plan
from engine.gpu.device_plan import DevicePlan
from engine.gpu.greedy import Greedy
from engine.gpu.partition import Partition, crossed
from engine.graph import Value
from engine.passes.fuse import GpuStep
from kernels.cpu.runtime.team import Team
from reference.op import DTYPES, Array


class Side(Protocol):
    """A device that runs parts of a step: memory for values, and a program for each part."""

    def resize(self, **sizes: int) -> None:
        """Set the sizes of the next step, whose inputs are written."""

    def write(self, value: Value, array: Array) -> None:
        """Copy in a value that another side made."""

    def run(self, part: int) -> None:
        """Start the side's part of this index, which need not be finished on return."""

    def ask(self, value: Value, array: Array) -> Callable[[], None]:
        """Start to copy a value that was made here; the returned call waits until it is there."""

    def set(self, label: str, name: str, value: float) -> None:
        """Set a scalar of a node, if it is here, from the next step on."""


class Hybrid:
    """The parts of a step in order, each on its side: the CPU's with the kernels of `steps`, their
    weights and caches in `arrays`.

    `inputs` are written before a step. A result on the device stays there until `logits` are read,
    and `greedy` has the tokens found in it; `hidden` is not kept.
    """

    def __init__(
        self,
        partition: Partition,
        device_plan: DevicePlan,
        steps: Sequence[Sequence[CpuStep]],
        arrays: Mapping[str, Array],
        team: Team,
    ) -> None:
        self.partition, self.device_plan, self.hidden = partition, device_plan, None
        limits = partition.layout.limits
        self.inputs = device_plan.inputs.host
        # host memory, at its largest size, of values that cross between sides
        self._crossing: dict[str, Array] = {
            crossed(value).name: np.zeros(value.sizes(limits), DTYPES[value.dtype])
            for part in partition.parts
            for value in part.gives
        }
        self._sides: dict[bool, Side] = {True: device_plan}
        if steps:
            last = next(part.gives[-1] for part in reversed(partition.parts) if not part.on_gpu)
            memory = {**arrays, **self.inputs, **self._crossing}
            every, (*pauses, _) = list(chain(*steps)), accumulate(map(len, steps))
            plan = Plan(every, memory, limits, crossed(last), team, pauses=pauses)
            self._sides[False] = plan
        own, others = iter(steps), iter(partition.layout.parts)
        self.steps: list[CpuStep | GpuStep] = []
        for part in partition.parts:
            self.steps += next(others).steps if part.on_gpu else next(own)
        self.greedy = None
        if partition.chooses:
            self.greedy = Greedy(partition.device, device_plan.inputs, partition.feeds)
        self._sizes: dict[str, int] = {}
        self._stayed = False

    def plan_for(self, tokens: int) -> None:
        """None for any step."""

    def resize(self, **sizes: int) -> None:
        """Set the named sizes of the next step, whose inputs are written."""
        self._sizes = sizes
        for side in self._sides.values():
            side.resize(**sizes)

    def set(self, label: str, name: str, value: float) -> None:
        """Set a node's scalar from the next step on."""
        for side in self._sides.values():
            side.set(label, name, value)

    def run(self) -> None:
        """Run one step with the current sizes and inputs. A device may still compute the result,
        for which `logits` waits.

        A value is waited for only where the other side needs it, so that the GPU computes while it
        is copied.
        """
        numbers = {on_gpu: count() for on_gpu in self._sides}
        waits: dict[str, Callable[[], None]] = {}
        for part in self.partition.parts:
            side = self._sides[part.on_gpu]
            for value in part.takes:
                if wait := waits.pop(value.name, None):
                    wait()
                side.write(value, self._held(value))
            side.run(next(numbers[part.on_gpu]))
            for value in part.gives:
                if value == self.partition.result:
                    self._stayed = part.on_gpu
                elif (held := self._held(value)).size:
                    waits[value.name] = side.ask(value, held)

    @property
    def logits(self) -> Array:
        """The result of the last step, float32 [outputs, vocab], with capacity for more outputs."""
        if self._stayed:
            result = self.partition.result
            if (held := self._held(result)).size:
                self.device_plan.read(result, held)
            self._stayed = False
        return self._crossing[crossed(self.partition.result).name]

    def _held(self, value: Value) -> Array:
        """The part of a crossing value that a step of these sizes uses."""
        rows = math.prod(value.sizes(self._sizes))
        return self._crossing[crossed(value).name].reshape(-1)[:rows]
