"""What a GPU can do at most, as far as it can be asked: copies, and products by cuBLAS."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from bench.cuda.clock import RULE, Clock, contender
from bench.race.experiment import Experiment
from bench.race.results import Limit, Measurement
from kernels.cuda.runtime.gpu import Gpu

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

    def limit(self, bytes_: float, operations: float) -> Limit:
        """What it allows at best those who read much and write little."""
        limits = [Limit("read bandwidth", bytes_ / self.reading, NOISE)]
        if self.peak:
            limits.append(Limit("matmul peak", operations / self.peak, NOISE))
        return max(limits, key=lambda limit: limit.seconds)


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

    clock.wake()
    probed = {"copy": copy, "read": read, "matmul": multiply}
    row = Measurement("gpu", "probe", target="cuda")
    raced = Experiment({
        name: contender(clock, replace(row, test=name), enqueue) for name, enqueue in probed.items()
    })  # fmt: skip
    rows = {row.test: row for row in raced.run(RULE)}
    if missing := [row for name, row in rows.items() if not row.samples and name != "matmul"]:
        raise RuntimeError("; ".join(f"{row.test}: {row.note}" for row in missing))
    return Ceilings(
        device=gpu.identity,
        bandwidth=2 * COPIED / rows["copy"].median,
        reading=COPIED / rows["read"].median,
        peak=2 * LARGE**3 / rows["matmul"].median if rows["matmul"].samples else 0.0,
        lacks=rows["matmul"].note,
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
