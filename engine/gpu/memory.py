"""A model's GPU memory: counted before anything is loaded, then filled."""

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from engine.gguf.file import GGUFFile
from engine.gpu.layout import MULTIPLE, Layout
from engine.progress import ProgressCallback
from kernels.cuda.runtime.device import Buffer, Device, upload
from kernels.cuda.runtime.kernel import CudaKernel
from reference.op import Array

SPARE = 2**26  # bytes for kernels, captured graphs and greedy tokens
LIBRARY = 2**28  # for cuBLAS, its kernels and workspace


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of `weights`, of the `cache`, and of a `step`: activations, inputs and captured
    graphs."""

    weights: int
    cache: int
    step: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.step

    def __str__(self) -> str:
        parts = {"weights": self.weights, "the cache": self.cache, "a step": self.step}
        listed = ", ".join(f"{gb(size)} for {what}" for what, size in parts.items())
        return f"{gb(self.total)} GB ({listed})"


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight that steps read: a tensor of the `file`, packed by its kernel's `pack` if there is
    one, or one of the model's `arrays`."""

    name: str
    packs: CudaKernel | None
    arrays: Mapping[str, Array]
    file: GGUFFile

    @property
    def bytes(self) -> int:
        """Bytes on the device."""
        if self.packs:
            assert self.packs.pack is not None
            info = self.file.tensors[self.name]
            return self.packs.pack.bytes(math.prod(info.dims[:-1]), info.row_bytes)
        return self.arrays[self.name].nbytes if self.name in self.arrays else self.stored

    @property
    def stored(self) -> int:
        """Bytes in the file."""
        known = self.file.tensors.get(self.name)
        return known.n_bytes if known else 0

    def array(self) -> Array:
        """The array as it is laid out on the device."""
        if self.packs:
            assert self.packs.pack is not None
            return self.packs.pack(self.file.tensor(self.name))
        own = self.arrays.get(self.name)
        return np.ascontiguousarray(self.file.tensor(self.name) if own is None else own)


def weights_of(layout: Layout, arrays: Mapping[str, Array], file: GGUFFile) -> dict[str, Weight]:
    """The weights that the steps read, by name."""
    return {
        value.name: Weight(step.weight, step.kernel, arrays, file)
        if step.weight and argument == "weight"
        else Weight(value.name, None, arrays, file)
        for step in layout.steps()
        for argument, value in step.arrays.items()
        if value.kind == "weight"
    }


def footprint(
    layout: Layout, weights: Mapping[str, Weight], there: Container[str] = ()
) -> Footprint:
    """The footprint of the laid-out steps and their weights, without those already `there`."""
    cache, inputs = (
        [v.bytes(layout.limits) for n, v in layout.values(kind).items() if n not in there]
        for kind in ("cache", "input")
    )
    multiplies = any(step.kernel.multiplies for step in layout.steps())
    step = layout.arena_bytes + _sum(inputs) + SPARE + multiplies * LIBRARY
    return Footprint(_sum(weight.bytes for weight in weights.values()), _sum(cache), step)


def _sum(sizes: Iterable[int]) -> int:
    """The sum of sizes, each aligned."""
    return sum(-(-size // MULTIPLE) * MULTIPLE for size in sizes)


def gb(size: int) -> str:
    """Bytes in GB."""
    return f"{size / 1e9:.3g}"


@dataclass(frozen=True, slots=True)
class Uploaded:
    """An array in device memory, with its shape."""

    buffer: Buffer
    shape: tuple[int, ...]


def uploaded(
    device: Device, weights: Mapping[str, Weight], progress: ProgressCallback | None
) -> dict[str, Uploaded]:
    """Upload the weights one by one, so that at most one packed weight is in host memory."""
    done, total = 0, sum(weight.stored for weight in weights.values())
    found = {}
    for name, weight in weights.items():
        array = weight.array()
        found[name] = Uploaded(upload(device, array), array.shape)
        if stored := weight.stored:
            weight.file.release(weight.name)
        done += stored
        if progress:
            progress(done, total)
    return found


class DeviceRows:
    """uint8 [capacity, row_bytes] in device memory, initially zero; rows are read and written by
    index, singly or by an array of indices."""

    def __init__(self, device: Device, shape: tuple[int, int]) -> None:
        self._device, self.shape = device, shape
        self.nbytes = shape[0] * shape[1]
        self.buffer = device.empty(self.nbytes)
        device.clear(self.buffer)

    def _all(self) -> Array:
        rows = np.empty(self.shape, np.uint8)
        self._device.read(self.buffer, rows)
        return rows

    def _row(self, number: int) -> Buffer:
        return self.buffer.at(number * self.shape[1], self.shape[1])

    def __getitem__(self, numbers: Array | int) -> Array:
        if not isinstance(numbers, int):
            return np.asarray(self._all()[numbers])
        row = np.empty(self.shape[1], np.uint8)
        self._device.read(self._row(numbers), row)
        return row

    def __setitem__(self, numbers: Array | int, rows: Array | int) -> None:
        if isinstance(numbers, int):
            row = np.broadcast_to(np.asarray(rows, np.uint8), self.shape[1:])
            self._device.write(self._row(numbers), np.ascontiguousarray(row))
            return
        own = self._all()
        own[numbers] = rows
        self._device.write(self.buffer, own)


def caches(
    device: Device, layout: Layout, there: Mapping[str, DeviceRows]
) -> dict[str, DeviceRows]:
    """The caches of all blocks on the device, by name: those `there` already, others empty."""
    found = {}
    for name, value in layout.values("cache").items():
        if name in there:
            found[name] = there[name]
            continue
        rows = value.sizes(layout.limits)[0]
        found[name] = DeviceRows(device, (rows, value.bytes(layout.limits) // rows))
    return found
