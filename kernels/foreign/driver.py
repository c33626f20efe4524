"""Launches a kernel of a cubin on a GPU through CUDA's driver API; standard library only.

It is copied beside the runner and imported there by its bare name. The candidate's code runs on the
GPU alone; everything on the host is the judge's own. Functions and constants are those of cuda.h.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Any

CAPABILITY = (75, 76)  # device attributes: major and minor compute capability
MOST_DYNAMIC, WITHOUT_ASKING = 8, 48 << 10  # function attribute; bytes allowed without it
MARGIN = 256  # guard bytes around an array in GPU memory


class DriverError(Exception):
    """No suitable GPU, an error of CUDA, or a kernel's write out of bounds."""


class Driver:
    """CUDA's driver and a GPU that runs machine code of a capability, e.g. 90."""

    def __init__(self, capability: int) -> None:
        family, least = divmod(capability, 10)
        wanted = (
            "a cubin runs on a GPU alone, this one on one of NVIDIA's of compute capability"
            f" {family}.{least}" + f" to {family}.9" * (least < 9)
        )
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise DriverError(
                f"{wanted}, and there is none here (no libcuda.so.1); its .cu source would run on"
                " the emulator"
            ) from None
        try:
            self("Init", 0)
            device, context = ctypes.c_int(), ctypes.c_void_p()
            self("DeviceGet", ctypes.byref(device), 0)
            major, minor = (self._attribute(device, which) for which in CAPABILITY)
        except DriverError as error:
            raise DriverError(f"{wanted}, and {error}") from None
        if major != family or minor < least:
            raise DriverError(f"{wanted}, and the GPU here has {major}.{minor}")
        self("DevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("CtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver; DriverError with CUDA's message if it fails."""
        if status := self._cuda[f"cu{name}"](*arguments):
            said = ctypes.c_char_p()
            self._cuda.cuGetErrorString(status, ctypes.byref(said))
            words = (said.value or b"an error that it has no words for").decode(errors="replace")
            raise DriverError(f"cu{name.partition('_')[0]} said: {words}")

    def _attribute(self, device: Any, which: int) -> int:
        found = ctypes.c_int()
        self("DeviceGetAttribute", ctypes.byref(found), which, device)
        return found.value


def launched(what: Any) -> Callable[..., Callable[[], None]]:
    """A kernel of a cubin as a call: arrays are copied to the GPU with random guard bytes around
    them, and outputs copied back. The module is loaded anew for each turn, so that its variables
    keep nothing."""
    with open(what["file"], "rb") as file:  # noqa: PTH123
        code = file.read()
    driver = Driver(what["capability"])
    kinds = [(name, getattr(ctypes, f"c_{kind}")) for name, kind in what["arguments"]]

    def bound(inputs: Any, outputs: Any, scalars: Any) -> Callable[[], None]:
        arrays, places = {**inputs, **outputs}, {}
        *grid, shared = scalars["launch"]
        module, function = ctypes.c_void_p(), ctypes.c_void_p()

        def run() -> None:
            if 0 in grid:
                return
            driver("ModuleLoadData", ctypes.byref(module), code)
            driver("ModuleGetFunction", ctypes.byref(function), module, what["name"].encode())
            if shared > WITHOUT_ASKING:
                driver("FuncSetAttribute", function, MOST_DYNAMIC, shared)
            for name, array in arrays.items():
                places[name] = OnGpu(driver, array)
            words = [
                kind(places[name].address if name in places else scalars[name])
                for name, kind in kinds
            ]
            parameters = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
            driver("LaunchKernel", function, *grid, shared, None, parameters, None)
            driver("CtxSynchronize")
            for name, place in places.items():
                place.take_back(name, name in outputs)
            driver("ModuleUnload", module)

        return run

    return bound


class OnGpu:
    """A copy of an array in GPU memory between random guard bytes."""

    def __init__(self, driver: Driver, array: Any) -> None:
        self._driver, self._array = driver, array
        self._before, self._behind = os.urandom(MARGIN), os.urandom(MARGIN)
        self._sent = self._before + array.tobytes() + self._behind
        self._memory = ctypes.c_uint64()
        driver("MemAlloc_v2", ctypes.byref(self._memory), ctypes.c_size_t(len(self._sent)))
        driver("MemcpyHtoD_v2", self._memory, self._sent, ctypes.c_size_t(len(self._sent)))
        self.address = self._memory.value + MARGIN

    def take_back(self, name: str, written: bool) -> None:
        """Check the guard bytes, copy a writable array back to the judge's memory and free the
        copy."""
        size = len(self._sent)
        now = ctypes.create_string_buffer(size)
        self._driver("MemcpyDtoH_v2", now, self._memory, ctypes.c_size_t(size))
        self._driver("MemFree_v2", self._memory)
        inside = slice(MARGIN, size - MARGIN)
        if now.raw[:MARGIN] != self._before or now.raw[size - MARGIN :] != self._behind:
            raise DriverError(f"it wrote before or behind {name}, outside of its bounds")
        if written:
            ctypes.memmove(self._array.ctypes.data, now.raw[inside], size - 2 * MARGIN)
        elif now.raw[inside] != self._sent[inside]:
            raise DriverError(f"it wrote to its input {name}")
