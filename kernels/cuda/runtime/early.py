"""Programmatic dependent launch: kernels that begin before their predecessor has ended. CuPy's
binding cannot set that launch attribute, so the driver is called. Names and numbers are
cuda.h's."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.launch import Grid

FIRST, RECORDED = 90, 12030  # compute capability: Hopper; CUDA's version whose graphs have it
SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
EarlyLaunch = Callable[[int, Grid, Sequence[Any], int], None]


class Attribute(ctypes.Structure):
    """CUlaunchAttribute; its value is a union of 64 bytes, of which one int counts here."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("allowed", ctypes.c_int),
        ("rest", ctypes.c_char * 60),
    )


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("count", ctypes.c_uint),
    )


def early_launch(library: str = "libcuda.so.1") -> EarlyLaunch | None:
    """The function that launches a kernel by address so, on a stream; None for a driver before CUDA
    11.8."""
    try:
        ask = ctypes.CDLL(library).cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
    attribute = Attribute(id=SERIALIZATION, allowed=1)

    def launch(function: int, grid: Grid, values: Sequence[Any], stream: int) -> None:
        block = (ctypes.c_uint * 3)(grid.threads, 1, 1)
        blocks, one = (ctypes.c_uint * 3)(*grid.blocks), ctypes.pointer(attribute)
        config = Config(blocks, block, grid.shared, stream, one, 1)
        words = [np.array(value) for value in values]  # until the call returns
        parameters = (ctypes.c_void_p * len(words))(*(word.ctypes.data for word in words))
        handle = ctypes.c_void_p(function)
        if status := ask(ctypes.byref(config), handle, parameters, None):
            raise DeviceError(f"cuLaunchKernelEx: CUDA's error {status}")

    return launch
