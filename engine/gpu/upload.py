"""Weights and caches in a device's memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.gpu.layout import Layout
from engine.gpu.weights import Weights, weights_in
from engine.watch import Watch
from kernels.cuda.device import Buffer, Device, upload

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Uploaded:
    """An array in a device's memory, and its shape there."""

    buffer: Buffer
    shape: tuple[int, ...]


def uploaded(
    device: Device, layout: Layout, weights: Weights, watch: Watch | None
) -> dict[str, Uploaded]:
    """The weights of the steps, by name: one by one, so that no more than one of them is in memory
    here as its kernel wants it."""
    wanted = weights_in(layout)
    done, total = 0, sum(map(weights.stored, wanted.values()))
    found = {}
    for name, weight in wanted.items():
        array = weights.array(weight)
        found[name] = Uploaded(upload(device, array), array.shape)
        weights.release(weight)
        done += weights.stored(weight)
        if watch:
            watch(done, total)
    return found


class DeviceRows:
    """uint8 [capacity, row_bytes] in a device's memory, zero at first; rows are taken and put by
    their numbers, as of an array."""

    def __init__(self, device: Device, shape: tuple[int, int]) -> None:
        self._device, self.shape = device, shape
        self.nbytes = shape[0] * shape[1]
        self.buffer = device.empty(self.nbytes)
        device.clear(self.buffer)

    def _all(self) -> Array:
        rows = np.empty(self.shape, np.uint8)
        self._device.read(self.buffer, rows)
        return rows

    def __getitem__(self, numbers: Array) -> Array:
        return np.asarray(self._all()[numbers])

    def __setitem__(self, numbers: Array, rows: Array) -> None:
        own = self._all()
        own[numbers] = rows
        self._device.write(self.buffer, own)


def caches(device: Device, layout: Layout) -> dict[str, DeviceRows]:
    """Empty ones for all blocks that run there, by name."""
    found = {}
    for name, value in layout.values("cache").items():
        rows = value.sizes(layout.limits)[0]
        found[name] = DeviceRows(device, (rows, value.bytes(layout.limits) // rows))
    return found
