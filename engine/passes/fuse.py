"""A pass that groups consecutive steps of a device that one fused kernel can run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.compile.plan import SCRATCH, Step
from engine.compile.stages import memory
from engine.graph import Value
from kernels.cuda.fusion.fused import Fused
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.kernel import any_shape

GpuStep = Step[CudaKernel]


@dataclass(frozen=True, slots=True)
class Group:
    """Steps that run one after the other, or in one launch by the `fused` kernel at sizes that it
    takes; at others as the groups `otherwise`."""

    steps: tuple[GpuStep, ...]
    fused: Fused | None = None
    otherwise: tuple["Group", ...] = ()

    def kernels(self) -> Iterator[Fused]:
        """The fused kernels that it may use."""
        if self.fused:
            yield self.fused
        for group in self.otherwise:
            yield from group.kernels()

    def values(self) -> list[Value]:
        """Its steps' arrays."""
        return [value for step in self.steps for value in step.arrays.values()]

    def named(self, each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The steps' arguments or sizes by the fused kernel's names."""
        assert self.fused is not None
        return {
            member.called(name): value
            for member, own in zip(self.fused.members, each, strict=True)
            for name, value in own.items()
        }


def fuse(steps: Sequence[GpuStep], fusions: Iterable[Fused]) -> tuple[Group, ...]:
    """The steps in order, grouped as widely as fused kernels allow."""
    known, found, i = tuple(fusions), list[Group](), 0
    while i < len(steps):
        rows = ((f, steps[i : i + len(f.members)]) for f in known)
        fused = next((f for f, own in rows if _fit(f, own)), None)
        size = len(fused.members) if fused else 1
        own, always = tuple(steps[i : i + size]), fused is None or fused.takes is any_shape
        shorter = (f for f in known if len(f.members) < size)
        found.append(Group(own, fused, () if always else fuse(own, shorter)))
        i += size
    return tuple(found)


def _fit(fused: Fused, steps: Sequence[GpuStep]) -> bool:
    """Whether these are the kernels that it fuses, with the same value wherever it has one name."""
    if [step.kernel for step in steps] != [member.kernel for member in fused.members]:
        return False
    found: dict[str, Any] = {}
    for member, step in zip(fused.members, steps, strict=True):
        for name, value in step.node.arguments.items():
            if name == SCRATCH and SCRATCH not in fused.signature:
                continue  # each has its own, which one launch does without
            own = memory(value) if isinstance(value, Value) else value
            if found.setdefault(member.called(name), own) != own:
                return False
    return True
