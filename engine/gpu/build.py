"""A divided model's weights, caches and launches put on the device, and joined with the CPU's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from engine.gpu.device_plan import DevicePlan
from engine.gpu.division import Division, crossed
from engine.gpu.greedy import Greedy, needs
from engine.gpu.hybrid import Hybrid
from engine.gpu.mirror import Inputs
from engine.gpu.upload import DeviceRows, caches, uploaded
from engine.gpu.weights import Weights
from engine.passes.fuse import GpuStep
from engine.plan import CpuStep, Plan
from engine.watch import Watch
from kernels.choose import Need
from kernels.cpu.runtime.team import Program
from kernels.cuda.kernel import CudaKernel
from reference.op import DTYPES

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a device has of a model: its plan, where a step's inputs are written, its caches."""

    plan: DevicePlan
    inputs: Inputs
    caches: dict[str, DeviceRows]


def load(
    division: Division,
    weights: Weights,
    inputs: Mapping[str, Array],
    watch: Watch | None,
) -> Loaded:
    """Put the device's part of a division there; `inputs` are the step's."""
    device, layout = division.device, division.layout
    sent, rows = Inputs(device, inputs), caches(device, layout)
    there = uploaded(device, layout, weights, watch)
    return Loaded(DevicePlan(device, layout, there, rows, sent.buffers), sent, rows)


def joined(
    division: Division,
    loaded: Loaded,
    steps: Sequence[Sequence[CpuStep]],
    arrays: Mapping[str, Array],
    choosing: Mapping[Need, CudaKernel],
) -> Hybrid:
    """The step of both sides, of the CPU's parts with kernels, their weights and caches; tokens are
    chosen on the device where there are kernels for that in `choosing`."""
    limits = division.layout.limits
    crossing: dict[str, Array] = {
        crossed(value).name: np.zeros(value.sizes(limits), DTYPES[value.dtype])
        for part in division.parts
        for value in part.gives
    }
    plan, programs = None, list[Program]()
    if steps:
        every, ends = list(chain(*steps)), list(accumulate(map(len, steps)))
        last = next(part.gives[-1] for part in reversed(division.parts) if not part.on_gpu)
        memory = {**arrays, **loaded.inputs.host, **crossing}
        plan = Plan(every, memory, limits, crossed(last), pauses=ends[:-1])
        programs = [plan.between(first, end) for first, end in pairwise([0, *ends])]
    own, others = iter(steps), iter(division.layout.parts)
    in_order: list[Sequence[CpuStep | GpuStep]] = [
        next(others).steps if part.on_gpu else next(own) for part in division.parts
    ]
    every_step = list(chain(*in_order))
    greedy, vocab = None, division.result.sizes(limits)[-1]
    if all(need in choosing for need in needs(vocab)):
        logits = loaded.plan.buffer(division.result)
        greedy = Greedy(division.device, choosing, logits, vocab)
    return Hybrid(
        division, every_step, loaded.plan, loaded.inputs, crossing, plan, programs, greedy
    )
