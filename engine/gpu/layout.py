"""A GPU's parts of a step with kernels, and where everything lies in its memory: worked out before
any memory is taken."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.arena import place
from engine.gpu.parts import Part
from engine.graph import Node, Value
from engine.plan import arranged, having_scratch
from kernels.choose import Need
from kernels.cuda.kernel import CudaKernel

MULTIPLE = 256  # bytes at which memory of a device begins: what kernels may count on


@dataclass(frozen=True, slots=True)
class DeviceStep:
    """A node with its kernel, its arguments as that kernel's stages want them; `weight` names
    the tensor of the file that the kernel reads in a packed layout, if it does."""

    node: Node
    kernel: CudaKernel
    weight: str

    def values(self) -> dict[str, Value]:
        """Its arrays by the names of arguments."""
        return {n: v for n, v in self.node.arguments.items() if isinstance(v, Value)}


@dataclass(frozen=True, slots=True)
class DevicePart:
    """A part's nodes with kernels; what has to be there before, what is read when it is done."""

    steps: tuple[DeviceStep, ...]
    takes: tuple[Value, ...]
    gives: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """`offsets` of activations in an arena of so many bytes, for steps of at most `limits`."""

    parts: tuple[DevicePart, ...]
    offsets: Mapping[str, int]
    arena_bytes: int
    limits: Mapping[str, int]

    def steps(self) -> Iterable[DeviceStep]:
        return (step for part in self.parts for step in part.steps)

    def values(self, kind: str) -> dict[str, Value]:
        """The arrays of a kind that its steps touch, by name."""
        found = (value for step in self.steps() for value in step.values().values())
        return {value.name: value for value in found if value.kind == kind}


def laid_out(
    parts: Sequence[Part], chosen: Mapping[Need, CudaKernel], limits: Mapping[str, int]
) -> Layout:
    """The parts that are the GPU's."""
    own = [_with_kernels(part, chosen, limits) for part in parts if part.on_gpu]
    moments: list[Iterable[Value]] = []
    for part in own:
        moments.append(part.takes)
        moments += [step.values().values() for step in part.steps]
        moments.append(part.gives)
    offsets, size = place(moments, limits, multiple=MULTIPLE)
    return Layout(tuple(own), offsets, size, limits)


def _with_kernels(
    part: Part, chosen: Mapping[Need, CudaKernel], limits: Mapping[str, int]
) -> DevicePart:
    steps = tuple(
        DeviceStep(having_scratch(node, kernel, limits), kernel, weight)
        for node, kernel, weight in arranged(part.nodes, chosen)
    )
    return DevicePart(steps, part.takes, part.gives)
