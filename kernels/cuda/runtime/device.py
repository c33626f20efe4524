"""What runs CUDA kernels: a GPU, or for tests a CPU that takes its place."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from kernels.cuda.runtime.launch import Grid, Launch
from kernels.cuda.runtime.product import Factors, Stage
from reference.op import Array

OLDEST = 75  # compute capability: Turing
EMULATED = "emulated"  # the identity of what takes a GPU's place, and the level of what it proves


class DeviceError(RuntimeError):
    """No GPU, one too old, without memory or lost; or a kernel that it could not run."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a device: `bytes` from `address` on, which `owner` keeps alive."""

    address: int
    bytes: int
    owner: Any

    def at(self, begin: int, size: int) -> "Buffer":
        """A part of it."""
        return Buffer(self.address + begin, size, self.owner)


class Device(Protocol):
    """Everything is done in the order in which it is asked for; only `read`, `wait`, what `ask`
    gives and sometimes `write` wait."""

    @property
    def name(self) -> str:
        """E.g. NVIDIA H200."""

    @property
    def identity(self) -> str:
        """Name, capability and driver, for certificates."""

    @property
    def capability(self) -> int:
        """E.g. 90 for sm_90."""

    @property
    def bounded(self) -> bool:
        """Whether it finds accesses out of bounds by itself."""

    @property
    def emulated(self) -> bool:
        """Whether it is no GPU, so that what kernels prove on it says nothing of one."""

    @property
    def library(self) -> str:
        """Name and version of what multiplies, for certificates; "" if there is none."""

    def memory(self) -> tuple[int, int]:
        """Bytes that are free, and all."""

    def empty(self, size: int) -> Buffer:
        """Memory of so many bytes at a multiple of 256; DeviceError where there is none left."""

    def write(self, buffer: Buffer, array: Array) -> None:
        """Copy a contiguous array to the buffer's begin; the array may change afterwards."""

    def clear(self, buffer: Buffer) -> None:
        """Every byte of it becomes 0."""

    def read(self, buffer: Buffer, array: Array) -> None:
        """Wait, and fill a contiguous array from the buffer's begin."""

    def ask(self, buffer: Buffer) -> Callable[[], Array]:
        """Copy a buffer's bytes when all is done that was asked for before; what is given waits for
        that, and for nothing later: uint8 [bytes]."""

    def prepare(self, stage: Stage) -> None:
        """Compile or load it now."""

    def launch(self, launch: Launch, grid: Grid, values: Sequence[Any]) -> None:
        """Run it with these parameters; nothing, if the grid has no block."""

    def multiply(self, factors: Factors) -> None:
        """By the device's own library, in bfloat16; not while anything is recorded."""

    def wait(self) -> None:
        """Until all is done; DeviceError for what went wrong meanwhile."""

    def capture(self) -> AbstractContextManager[Callable[[], None]]:
        """What is done within is not run but recorded; what is given runs it all, later."""


def upload(device: Device, array: Array) -> Buffer:
    """A copy of a contiguous array."""
    buffer = device.empty(array.nbytes)
    device.write(buffer, array)
    return buffer
