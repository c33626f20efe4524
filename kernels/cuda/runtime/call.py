"""A CUDA kernel bound to host arrays: copied to the device, run, and copied back. Device memory of
outputs is pre-filled with NaN between canaries."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kernels.cuda.runtime.current import current
from kernels.cuda.runtime.device import Buffer, Device, upload
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.product import Product, Stage
from kernels.errors import KernelError
from kernels.shapes import sizes
from reference.op import Arguments, Array, Shape
from reference.quantise_activations import BLOCK, QUANTISING

CANARY = 0xA5
MARGIN = 256  # bytes on each side, a multiple that keeps the output's alignment


def stages(kernel: CudaKernel) -> tuple[Stage, ...]:
    """All stages, preceded by rounding of activations where the kernel reads them so."""
    from kernels.cuda.table import quantising

    return (*quantising(kernel.activations), *kernel.stages)


def calls(
    device: Device, stages: Iterable[Stage], arguments: Mapping[str, Any], shape: Shape
) -> list[Callable[[], None]]:
    """The device's calls at these sizes, in order; `arguments` has the address of each array and
    each scalar."""
    found: list[Callable[[], None]] = []
    for stage in stages:
        if isinstance(stage, Product):
            if stage.when(shape):
                found.append(partial(device.multiply, stage.factors(arguments, shape)))
        elif not (grid := stage.at(shape)).empty:
            found.append(partial(device.launch, stage, grid, stage.values(arguments, shape)))
    return found


class _Output:
    """Device memory of an output, between canaries unless the device detects stray writes
    itself."""

    def __init__(self, device: Device, name: str, array: Array) -> None:
        self._device, self._name, self._array = device, name, array
        self._margin = 0 if device.bounded else MARGIN
        whole = np.full(array.nbytes + 2 * self._margin, CANARY, np.uint8)
        self._inside(whole)[:] = self._bytes()
        self._memory = upload(device, whole)
        self.buffer = self._memory.at(self._margin, array.nbytes)

    def _bytes(self) -> Array:
        return self._array.reshape(-1).view(np.uint8)

    def _inside(self, whole: Array) -> Array:
        return whole[self._margin : self._margin + self._array.nbytes]

    def take(self) -> None:
        """Copy it back."""
        whole = np.empty(self._memory.bytes, np.uint8)
        self._device.read(self._memory, whole)
        self._bytes()[:] = self._inside(whole)
        self._inside(whole)[:] = CANARY
        if (whole != CANARY).any():
            raise KernelError(f"{self._name} was written outside its bounds")


@dataclass(frozen=True, slots=True)
class Rows:
    """A weight's rows in device memory, so many bytes apart."""

    buffer: Buffer
    stride: int


def bind(
    kernel: CudaKernel, inputs: Arguments, outputs: Mapping[str, Array], rows: Rows | None = None
) -> Callable[[int, Sequence[int]], None]:
    """Bind the kernel to these arrays on the current device, with the weight's `rows` instead of
    the array if given; a run raises KernelError for faults that the device detects, and for writes
    beyond an output."""
    device = current()
    for output, source in kernel.in_place:
        outputs[output][...] = inputs[source]
    host: dict[str, Any] = {**inputs}
    host |= packed_weights(kernel, inputs)
    shapes = {name: value.shape for name, value in host.items() if isinstance(value, np.ndarray)}
    shape = device_sizes(kernel, shapes) | sizes(kernel.spec, inputs, kernel.format)
    arrays = {name: value for name, value in host.items() if isinstance(value, np.ndarray)}
    buffers = {name: upload(device, np.ascontiguousarray(a)) for name, a in arrays.items()}
    if rows:
        buffers["weight"], shape["stride"] = rows.buffer, rows.stride
    results = [_Output(device, name, array) for name, array in outputs.items()]
    buffers |= {name: result.buffer for name, result in zip(outputs, results, strict=True)}
    buffers |= {n: device.empty(size) for n, size in between(kernel, shape).items()}
    scalars = {name: value for name, value in host.items() if name not in arrays}

    def run(n_threads: int = 1, order: Sequence[int] = (0,)) -> None:
        addresses = scalars | {name: buffer.address for name, buffer in buffers.items()}
        for do in calls(device, stages(kernel), addresses, shape):
            do()
        for result in results:
            result.take()

    return run


def packed_weights(kernel: CudaKernel, inputs: Arguments) -> dict[str, Array]:
    """Weights that are laid out differently from the file."""
    if not kernel.pack:
        return {}
    weights = (argument.name for argument in kernel.spec.inputs if argument.dtype == "format")
    return {name: kernel.pack(inputs[name]) for name in weights}


def device_sizes(kernel: CudaKernel, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Sizes in stages' signatures of arrays as laid out on the device, such as bytes of rows; those
    of the op's own signature take precedence."""
    found: dict[str, int] = {}
    for argument in (a for stage in kernel.stages for a in stage.arguments):
        for axis, size in zip(argument.axes, shapes.get(argument.name, ()), strict=False):
            found.setdefault(axis, size)
    return found


def between(kernel: CudaKernel, shape: Shape) -> dict[str, int]:
    """Bytes of the stages' intermediate arrays."""
    found = {}
    if kernel.activations in QUANTISING:
        tokens, hidden = shape["tokens"], shape["hidden"]
        groups = tokens * (hidden // BLOCK) * 4
        found = {"q": tokens * hidden, "scale": groups, "total": groups}
    if kernel.scratch:
        found["scratch"] = 4 * kernel.scratch(shape)
    return found
