"""A GPU, through CuPy."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from kernels.cuda.runtime import nvrtc
from kernels.cuda.runtime.cublas import Cublas
from kernels.cuda.runtime.device import OLDEST, Buffer, DeviceError
from kernels.cuda.runtime.early import FIRST, RECORDED, EarlyLaunch, early_launch
from kernels.cuda.runtime.launch import Grid, Launch
from kernels.cuda.runtime.pinned import Pinned
from kernels.cuda.runtime.product import Factors, Product, Stage
from reference.op import Array

DRIVER = Path("/proc/driver/nvidia/version")


class Gpu:
    """A Device; `stream` is CuPy's, used for everything. DeviceError where there is none, or one
    that is too old."""

    bounded = emulated = False

    def __init__(self, number: int = 0) -> None:
        if reason := nvrtc.missing():
            raise DeviceError(f"no CUDA: {reason}; pip install 'assay[gpu]'")
        import cupy

        self._cupy = cupy
        self._errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError)
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except self._errors as error:
            reason = _of_driver(cupy.cuda.runtime) or error
            raise DeviceError(f"no GPU can be used: {reason}") from None
        if number >= count:
            raise DeviceError(f"there is no GPU {number}, only {count}")
        try:
            properties = cupy.cuda.runtime.getDeviceProperties(number)
        except self._errors as error:
            raise DeviceError(f"GPU {number} cannot be used: {error}") from None
        self.name: str = properties["name"].decode()
        self.capability = properties["major"] * 10 + properties["minor"]
        if self.capability < OLDEST:
            raise DeviceError(
                f"{self.name} has compute capability {self.capability / 10}: {OLDEST / 10} at least"
            )
        self._device = cupy.cuda.Device(number)
        with (
            self._said()
        ):  # another program's exclusively, for example, or without memory for a context
            self._device.use()
            self.stream = cupy.cuda.Stream(non_blocking=True)
        self._modules: dict[Path, Any] = {}
        self._functions: dict[str, Any] = {}
        self._shared: dict[str, int] = {}  # bytes of it that a launch may have

    @cached_property
    def identity(self) -> str:
        version = driver() or self._cupy.cuda.runtime.driverGetVersion()
        return f"{self.name}/sm_{self.capability}/driver-{version}"

    @cached_property
    def _cublas(self) -> Cublas:
        return Cublas()

    @cached_property
    def library(self) -> str:
        try:
            return f"cuBLAS {self._cublas.version}"
        except DeviceError:
            return ""

    def memory(self) -> tuple[int, int]:
        with self._said():
            free, total = self._device.mem_info
        kept = self._cupy.get_default_memory_pool().free_bytes()  # for whoever asks next
        return int(free + kept), int(total)

    def empty(self, size: int) -> Buffer:
        try:
            with self._said():
                memory = self._cupy.cuda.alloc(max(size, 1))
        except self._cupy.cuda.memory.OutOfMemoryError:
            free, total = self.memory()
            raise DeviceError(
                f"{self.name}: {size:,} bytes wanted, {free:,} of {total:,} are free"
            ) from None
        return Buffer(int(memory.ptr), size, memory)

    def write(self, buffer: Buffer, array: Array) -> None:
        with self._said():
            self._pinned.write(buffer.address, array)

    def clear(self, buffer: Buffer) -> None:
        if buffer.bytes:
            with self._said():
                self._cupy.cuda.runtime.memsetAsync(
                    buffer.address, 0, buffer.bytes, self.stream.ptr
                )

    def read(self, buffer: Buffer, array: Array) -> None:
        if array.nbytes:
            self._copy("DeviceToHost", array.ctypes.data, buffer.address, array.nbytes)
        self.wait()

    def ask(self, buffer: Buffer) -> Callable[[], Array]:
        with self._said():
            waits = self._pinned.ask(buffer.address, buffer.bytes)

        def wait() -> Array:
            with self._said():
                return waits()

        return wait

    def _copy(self, kind: str, target: int, source: int, size: int) -> None:
        runtime = self._cupy.cuda.runtime
        with self._said():
            runtime.memcpyAsync(
                target, source, size, getattr(runtime, f"memcpy{kind}"), self.stream.ptr
            )

    @cached_property
    def _early(self) -> EarlyLaunch | None:
        known = self._cupy.cuda.runtime.driverGetVersion() >= RECORDED
        return early_launch() if known and self.capability >= FIRST else None

    @cached_property
    def _pinned(self) -> Pinned:
        return Pinned(self._cupy, self.stream, self._copy)

    def prepare(self, stage: Stage) -> None:
        if isinstance(stage, Product):
            _ = self._cublas  # cannot be created during capture
        elif stage.digest not in self._functions:
            path = nvrtc.kept(stage, self.capability)
            with self._said():
                if path not in self._modules:
                    self._modules[path] = self._cupy.RawModule(path=str(path))
                self._functions[stage.digest] = self._modules[path].get_function(stage.function)

    def launch(self, launch: Launch, grid: Grid, values: Sequence[Any]) -> None:
        if grid.empty:
            return
        self.prepare(launch)
        function = self._functions[launch.digest]
        with self._said(), self.stream:
            # must be requested beyond 48 KiB, including the kernel's static memory
            if grid.shared > self._shared.get(launch.digest, 0):
                function.max_dynamic_shared_size_bytes = self._shared[launch.digest] = grid.shared
            if launch.waits and self._early:
                self._early(function.kernel.ptr, grid, values, self.stream.ptr)
            else:
                function(grid.blocks, (grid.threads,), tuple(values), shared_mem=grid.shared)

    def multiply(self, factors: Factors) -> None:
        with self._said(), self.stream:
            self._cublas.multiply(factors)

    def wait(self) -> None:
        with self._said():
            self.stream.synchronize()

    @contextmanager
    def capture(self) -> Iterator[Callable[[], None]]:
        recorded: list[Any] = []

        def run() -> None:
            with self._said():
                recorded[0].launch(self.stream)

        with self._said():
            self.stream.begin_capture()
        try:
            yield run
        finally:
            with self._said():
                recorded.append(self.stream.end_capture())

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Translate CuPy's errors into ours."""
        try:
            yield
        except self._errors as error:
            raise DeviceError(f"{self.name}: {error}") from None


def driver() -> str:
    """The version of the loaded driver, e.g. 580.95.05, if the system tells it."""
    try:
        told = DRIVER.read_text()
    except OSError:
        return ""
    found = re.search(r"\d+\.\d+(\.\d+)?", told)
    return found[0] if found else ""


def _of_driver(runtime: Any) -> str:
    """The complaint about the driver; "" if there is none."""
    has, wants = runtime.driverGetVersion(), runtime.runtimeGetVersion()
    if not has:
        return "there is no NVIDIA driver"
    if has // 1000 < wants // 1000:  # compatible within a major version
        return f"the driver is for CUDA {has // 1000}, CuPy for CUDA {wants // 1000}"
    return ""
