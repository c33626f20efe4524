"""A step whose parts run on a GPU and on the CPU's threads, one after the other or side by side."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.gpu.device_plan import DevicePlan
from engine.gpu.division import Division, crossed
from engine.gpu.greedy import Greedy
from engine.gpu.mirror import Inputs
from engine.graph import Value
from engine.passes.fuse import GpuStep
from engine.plan import CpuStep, Plan
from kernels.cpu.runtime.team import Program, Team

Array = np.ndarray[Any, np.dtype[Any]]


class Hybrid:
    """The parts of a step in order.

    `crossing` is the host's memory, at its largest size, of values that one side makes and the
    other reads, by their names there, the step's result among them. The CPU's parts are `programs`
    of `plan`, which there is if they have any node; `steps` are those of all parts, in order.
    `inputs` are written to before a step. Where the result is the device's, it stays there until
    `logits` are asked for, and `greedy` finds tokens in it; `hidden` is not kept.
    """

    def __init__(
        self,
        division: Division,
        steps: Sequence[CpuStep | GpuStep],
        device_plan: DevicePlan,
        inputs: Inputs,
        crossing: Mapping[str, Array],
        plan: Plan | None,
        programs: Sequence[Program],
        greedy: Greedy | None,
    ) -> None:
        self.division, self.steps = division, steps
        self._device, self.device_plan = division.device, device_plan
        self._inputs, self._crossing = inputs, crossing
        self._plan, self._programs, self.greedy = plan, programs, greedy
        self._sizes: dict[str, int] = {}
        self.inputs = inputs.host
        self._stayed = False
        self.hidden = None

    def resize(self, **sizes: int) -> None:
        """Set the named sizes of the next step."""
        self._sizes = sizes
        if self._plan:
            self._plan.resize(**sizes)

    def set(self, label: str, name: str, value: float) -> None:
        """Give a node's scalar another value from the next step on."""
        if self._plan and any(step.node.label == label for step in self._plan.steps):
            self._plan.set(label, name, value)
        else:
            self.device_plan.set(label, name, value)

    def run(self, team: Team) -> None:
        """One step, of the sizes and inputs as they are; the result is there at the end."""
        self._inputs.send(self._sizes["tokens"])
        programs, number = iter(self._programs), 0
        for part in self.division.parts:
            if not part.on_gpu:
                team.run(next(programs))
                continue
            for value in part.takes:
                self._device.write(self.device_plan.buffer(value), self._held(value))
            self.device_plan.run(number, self._sizes)
            for value in part.gives:
                if value != self.division.result:
                    self._read(value)
            self._stayed = self.division.result in part.gives
            number += 1

    @property
    def logits(self) -> Array:
        """The result of the last step, float32 [outputs, vocab], and room for more outputs."""
        if self._stayed:
            self._read(self.division.result)
            self._stayed = False
        return self._crossing[crossed(self.division.result).name]

    def _read(self, value: Value) -> None:
        if (held := self._held(value)).size:
            self._device.read(self.device_plan.buffer(value), held)

    def _held(self, value: Value) -> Array:
        """What a step of these sizes has of a value that crosses."""
        count = math.prod(value.sizes(self._sizes))
        return self._crossing[crossed(value).name].reshape(-1)[:count]
