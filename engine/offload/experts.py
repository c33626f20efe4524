"""Experts of mixtures in the packed file: each separate, so that a step reads only those that its
routers choose."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.compile.packed_weights import Packed, Packer
from engine.compile.plan import CpuStep
from engine.gguf.file import GGUFFile
from engine.offload.bundle import stride_of
from reference.op import Array


@dataclass(frozen=True, slots=True)
class Stack:
    """A tensor of experts: each packed as its kernel streams it, in `size` bytes, padded to whole
    disk sectors; a job (packed_weights.py)."""

    packed: Packed
    size: int

    @property
    def tensors(self) -> tuple[str, ...]:
        return (self.packed.tensor,)

    @property
    def stride(self) -> int:
        return stride_of(self.size)

    @property
    def layout(self) -> str:
        return f"{self.packed.layout} every {self.stride} bytes"

    def source_bytes(self, file: GGUFFile) -> int:
        return self.packed.source_bytes(file)

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        return self.packed.shape(file)[0], self.stride

    def pieces(self, file: GGUFFile, packer: Packer) -> Iterator[tuple[int, Array, int]]:
        def moved(begin: int) -> int:
            return begin + begin // self.size * (self.stride - self.size)

        own = replace(packer, memory=lambda begin, size: packer.memory(moved(begin), size))
        for begin, packed, read in self.packed.pieces(file, own):
            yield moved(begin), packed, read

    def begins(self, file: GGUFFile) -> dict[str, int]:  # noqa: ARG002  of a group of tensors
        return {self.packed.tensor: 0}


def stacks_of(steps: Sequence[CpuStep], file: GGUFFile) -> dict[int, list[Stack]]:
    """The matrices of each mixture's experts, in the order of a step. Tensors of kernels that take
    unpacked rows are read whole, and stream as others do."""
    sorted_ = {step.arrays["ends"].name for step in steps if step.node.op == "sort_by_expert"}
    found: dict[int, list[Stack]] = {}
    for step in steps:
        how = step.kernel.pack
        if how and step.node.op == "linear_experts" and step.arrays["ends"].name in sorted_:
            packed = Packed(step.weight, how)
            stack = Stack(packed, packed.shape(file)[1])
            found.setdefault(int(step.weight.split(".")[1]), []).append(stack)
    return found


def tensors_of(stacks: Mapping[int, Sequence[Stack]]) -> set[str]:
    return {stack.packed.tensor for several in stacks.values() for stack in several}
