"""What a GPU can do at most, as far as it can be asked: copies, and products by cuBLAS."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from bench.cuda.clock import Clock
from bench.cuda.contest import Contender, contest
from kernels.cuda.gpu import Gpu

COPIED = 1 << 30  # bytes
LARGE = 8192  # rows and columns
FEW, MANY = 512, 8  # repetitions


@dataclass(frozen=True, slots=True)
class Ceilings:
    """`bandwidth` in bytes a second, read and written ones both counted, of copying within the GPU;
    `peak` in operations a second of a large product of float16 with float32 sums; `launch` seconds
    of an empty kernel among many in a graph; `cache` bytes of the last-level cache."""

    device: str
    bandwidth: float
    peak: float
    launch: float
    cache: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def seconds(self, bytes_: float, operations: float) -> tuple[float, str]:
        """What it allows at best, and by which limit."""
        by = {"copy bandwidth": bytes_ / self.bandwidth, "matmul peak": operations / self.peak}
        name = max(by, key=by.__getitem__)
        return by[name], name


def probe(gpu: Gpu, clock: Clock) -> Ceilings:
    """In some two seconds."""
    import cupy

    runtime, stream = cupy.cuda.runtime, gpu.stream
    one, other = gpu.empty(COPIED), gpu.empty(COPIED)
    kind = runtime.memcpyDeviceToDevice

    def copy(_: int) -> None:
        runtime.memcpyAsync(one.address, other.address, COPIED, kind, stream.ptr)

    # Of ones a GPU draws less power and clocks higher than of any model's numbers.
    drawn = np.random.default_rng(0).standard_normal(2**20, np.float32).astype(np.float16)
    with stream:
        a, b = (cupy.asarray(np.resize(drawn, (LARGE, LARGE))) for _ in range(2))
        product = cupy.empty((LARGE, LARGE), cupy.float16)

    def multiply(_: int) -> None:
        with stream:
            cupy.matmul(a, b, out=product)

    found = contest(clock, [Contender("copy", copy), Contender("matmul", multiply)])
    if found.absent:
        raise RuntimeError("; ".join(f"{x.name}: {x.reason}" for x in found.absent))
    return Ceilings(
        device=gpu.identity,
        bandwidth=2 * COPIED / median(found.samples["copy"]),
        peak=2 * LARGE**3 / median(found.samples["matmul"]),
        launch=_launch(gpu, clock, cupy.RawKernel('extern "C" __global__ void no() {}', "no")),
        cache=int(cupy.cuda.Device().attributes["L2CacheSize"]),
    )


def _launch(gpu: Gpu, clock: Clock, kernel: Callable[..., None]) -> float:
    """Seconds of an empty kernel in a graph of many."""
    with gpu.stream:
        kernel((1,), (32,), ())
    gpu.wait()
    with gpu.capture() as replay, gpu.stream:
        for _ in range(FEW):
            kernel((1,), (32,), ())
    return median(clock.seconds(lambda _: replay(), MANY) for _ in range(5)) / FEW
