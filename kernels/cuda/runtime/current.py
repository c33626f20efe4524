"""The device that CUDA kernels run on."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from kernels.cuda.runtime.device import Device

_instead: list[Device] = []


@cache
def _first_gpu() -> Device:
    from kernels.cuda.runtime.gpu import Gpu

    return Gpu()


def current() -> Device:
    """The first GPU, or what takes its place; DeviceError if there is none."""
    return _instead[-1] if _instead else _first_gpu()


@contextmanager
def taking_the_place(device: Device) -> Iterator[None]:
    """Of a GPU, for tests."""
    _instead.append(device)
    try:
        yield
    finally:
        _instead.remove(device)
