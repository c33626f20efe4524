"""Weights and caches in a device's memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.gguf_file import GGUFFile
from engine.gpu.layout import Layout
from engine.gpu.memory import is_packed
from engine.watch import Watch
from kernels.cuda.device import Buffer, Device, upload

PIECE = 2**24  # bytes that are written at a time

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Weight:
    """An array in a device's memory, and its shape there."""

    buffer: Buffer
    shape: tuple[int, ...]


def uploaded(
    device: Device,
    layout: Layout,
    arrays: Mapping[str, Array],
    file: GGUFFile,
    watch: Watch | None,
) -> dict[str, Weight]:
    """The weights of the steps, each as its kernel reads it, by name: packed one by one, so that
    no more than one of them is in memory here."""
    wanted = {
        value.name: (step, value)
        for step in layout.steps()
        for value in step.values().values()
        if value.kind == "weight"
    }
    tensors = {name: step.weight or name for name, (step, _) in wanted.items()}
    sizes = {n: file.tensors[t].n_bytes for n, t in tensors.items() if t in file.tensors}
    done, found = 0, dict[str, Weight]()
    for name, (step, value) in wanted.items():
        if is_packed(step, value):
            assert step.kernel.pack is not None
            array = step.kernel.pack(file.tensor(step.weight))
        else:
            array = np.ascontiguousarray(arrays[name])
        found[name] = Weight(upload(device, array), array.shape)
        if name in sizes:
            file.release(tensors[name])
            done += sizes[name]
            if watch:
                watch(done, sum(sizes.values()))
    return found


class DeviceRows:
    """uint8 [capacity, row_bytes] in a device's memory, zero at first; rows are taken and put by
    their numbers, as of an array."""

    def __init__(self, device: Device, shape: tuple[int, int]) -> None:
        self._device, self.shape = device, shape
        self.nbytes = shape[0] * shape[1]
        self.buffer = device.empty(self.nbytes)
        zeros = np.zeros(min(PIECE, self.nbytes), np.uint8)
        for begin in range(0, self.nbytes, PIECE):
            size = min(PIECE, self.nbytes - begin)
            device.write(self.buffer.at(begin, size), zeros[:size])

    def _all(self) -> Array:
        rows = np.empty(self.shape, np.uint8)
        self._device.read(self.buffer, rows)
        return rows

    def __getitem__(self, numbers: Array) -> Array:
        return self._all()[numbers]

    def __setitem__(self, numbers: Array, rows: Array) -> None:
        own = self._all()
        own[numbers] = rows
        self._device.write(self.buffer, own)


def caches(device: Device, layout: Layout) -> dict[str, DeviceRows]:
    """Empty ones for all blocks that run there, by name."""
    found = {}
    for name, value in layout.values("cache").items():
        rows, row_bytes = value.sizes(layout.limits)
        found[name] = DeviceRows(device, (rows, row_bytes))
    return found
