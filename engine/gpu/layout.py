"""A GPU's parts of a step with kernels, and their memory layout, computed before any memory is
allocated."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from engine.compile.arena import place
from engine.compile.plan import with_kernels, with_scratch
from engine.gpu.parts import Part
from engine.graph import Graph, Value
from engine.passes.fuse import GpuStep, Group, fuse
from engine.passes.quantise import quantise
from kernels.cuda.fusion.fused import Fused
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.dispatch import KernelSpec

MULTIPLE = 256  # alignment of device memory that kernels may rely on


@dataclass(frozen=True, slots=True)
class DevicePart:
    """A part's nodes with kernels, the values it requires, and the values read after it."""

    groups: tuple[Group, ...]
    takes: tuple[Value, ...]
    gives: tuple[Value, ...]

    @property
    def steps(self) -> list[GpuStep]:
        return list(chain.from_iterable(group.steps for group in self.groups))


@dataclass(frozen=True, slots=True)
class Layout:
    """`offsets` of activations in an arena of so many bytes, for steps of at most `limits`."""

    parts: tuple[DevicePart, ...]
    offsets: Mapping[str, int]
    arena_bytes: int
    limits: Mapping[str, int]

    def steps(self) -> Iterable[GpuStep]:
        return (step for part in self.parts for step in part.steps)

    def fused(self) -> list[Fused]:
        """The fused kernels in use."""
        groups = (group for part in self.parts for group in part.groups)
        return list({f.name: f for group in groups for f in group.kernels()}.values())

    def values(self, kind: str) -> dict[str, Value]:
        """The arrays of a kind that its steps touch, by name, at their largest size in any step."""
        found = (value for step in self.steps() for value in step.arrays.values())
        own = [value for value in found if value.kind == kind]
        return {v.name: v for v in sorted(own, key=lambda value: value.bytes(self.limits))}


def laid_out(
    parts: Sequence[Part],
    chosen: Mapping[KernelSpec, CudaKernel],
    fusions: Sequence[Fused],
    limits: Mapping[str, int],
) -> Layout:
    """The layout of the GPU's parts."""
    own = [_with_kernels(part, chosen, fusions, limits) for part in parts if part.on_gpu]
    moments: list[Iterable[Value]] = []
    for part in own:
        moments.append(part.takes)
        moments += [group.values() for group in part.groups]
        moments.append(part.gives)
    offsets, size = place(moments, limits, multiple=MULTIPLE)
    return Layout(tuple(own), offsets, size, limits)


def _with_kernels(
    part: Part,
    chosen: Mapping[KernelSpec, CudaKernel],
    fusions: Sequence[Fused],
    limits: Mapping[str, int],
) -> DevicePart:
    graph, _ = quantise(chosen)(Graph(list(part.nodes)), {})
    steps = [with_scratch(step, limits) for step in with_kernels(graph, chosen)]
    return DevicePart(fuse(steps, fusions), part.takes, part.gives)
