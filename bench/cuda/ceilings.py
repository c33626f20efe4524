"""What a GPU can do at most, as far as it can be asked: copies, and products by cuBLAS."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from bench.cuda.clock import Clock
from bench.cuda.contest import Contender, contest
from bench.results import Measurement
from kernels.cuda.gpu import Gpu

READ = """
extern "C" __global__ void read(const uint4* from, size_t count, unsigned* out) {
  unsigned all = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count;
       i += gridDim.x * size_t(blockDim.x)) {
    const uint4 four = from[i];
    all ^= four.x ^ four.y ^ four.z ^ four.w;
  }
  if (all == 0x9e3779b9) *out = all;
}"""
COPIED = 1 << 30  # bytes
BLOCKS, THREADS = 4096, 256  # that read them
LARGE = 8192  # rows and columns
FEW, MANY = 512, 8  # repetitions
NOISE = 0.05  # of what is probed, between one moment and another


@dataclass(frozen=True, slots=True)
class Ceilings:
    """`bandwidth` in bytes a second, read and written ones both counted, of copying within the GPU;
    `reading` the same of a kernel that only reads; `peak` in operations a second of a large product
    of float16 with float32 sums, 0 where `lacks` says why there is none; `launch` seconds of an
    empty kernel among many in a graph; `cache` bytes of the last-level cache."""

    device: str
    bandwidth: float
    reading: float
    peak: float
    launch: float
    cache: int
    lacks: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def limit(self, bytes_: float, operations: float) -> "Limit":
        """What it allows at best."""
        # what hardly writes may go beyond the rate of copies
        beyond = max(0.0, self.reading / self.bandwidth - 1) + NOISE
        limits = [Limit("copy bandwidth", bytes_ / self.bandwidth, beyond)]
        if self.peak:
            limits.append(Limit("matmul peak", operations / self.peak, NOISE))
        return max(limits, key=lambda limit: limit.seconds)


@dataclass(frozen=True, slots=True)
class Limit:
    """What `name` allows: `seconds` at least, but for a `spread` of that."""

    name: str
    seconds: float
    spread: float

    def of(self, row: Measurement) -> Measurement:
        """The row with it."""
        return replace(row, limit=self.name, limit_seconds=self.seconds, limit_spread=self.spread)


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

    kernel, arguments = cupy.RawKernel(READ, "read"), (one.address, COPIED // 16, other.address)

    def read(_: int) -> None:
        with stream:
            kernel((BLOCKS,), (THREADS,), tuple(map(np.uint64, arguments)))

    entries = [Contender("copy", copy), Contender("read", read), Contender("matmul", multiply)]
    found = contest(clock, entries)
    if missing := [x for x in found.absent if x.name != "matmul"]:
        raise RuntimeError("; ".join(f"{x.name}: {x.reason}" for x in missing))
    multiplied = found.samples.get("matmul")
    return Ceilings(
        device=gpu.identity,
        bandwidth=2 * COPIED / median(found.samples["copy"]),
        reading=COPIED / median(found.samples["read"]),
        peak=2 * LARGE**3 / median(multiplied) if multiplied else 0.0,
        lacks="; ".join(absent.reason for absent in found.absent),
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
