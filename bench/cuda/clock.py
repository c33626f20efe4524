"""How long a GPU takes, by its own events, and contenders that are timed so; and what it can do at
most, as far as it can be asked: copies, and products by cuBLAS.

What is timed stands in the stream behind a kernel that waits, so that the host has launched all of
it before the first begins: the host's own time is not in it. A stream holds only so many launches,
and the host waits where it is full: then fewer repetitions are timed together.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from bench.race.experiment import Contender, Experiment, Rule, first_line, timed
from bench.race.results import Limit, Measurement
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.gpu import Gpu

Enqueue = Callable[[int], None]  # launches the i-th repetition and does not wait

WAIT = """
extern "C" __global__ void wait(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {}
}"""
FIRST, LONGEST = 200_000, 200_000_000  # cycles
AWAKE = 100_000_000  # cycles
SETTLED = 3  # launches before anything counts
SAMPLE = 5e-4  # seconds that a sample should last
MOST = 64  # repetitions of one
RULE = Rule(least=7, error=0.005, cap_seconds=0.8, most=200)  # of a race


class Clock:
    """Times work on a GPU's stream."""

    def __init__(self, gpu: Gpu) -> None:
        import cupy

        self._events: Any = cupy.cuda
        self._wait = cupy.RawKernel(WAIT, "wait")
        self._gpu, self._cycles = gpu, FIRST

    def wake(self) -> None:
        """A GPU that had nothing to do clocks low at first."""
        with self._gpu.stream:
            self._wait((1,), (1,), (np.int64(AWAKE),))
        self._gpu.wait()

    def seconds(self, enqueue: Enqueue, repeats: int) -> float:
        """Of one repetition among so many, or as many as the stream holds."""
        begin, end = (self._events.Event() for _ in range(2))
        while True:
            with self._gpu.stream:
                self._wait((1,), (1,), (np.int64(self._cycles),))
            begin.record(self._gpu.stream)
            for i in range(repeats):
                enqueue(i)
            end.record(self._gpu.stream)
            late = begin.done  # the wait was over before all was launched
            self._gpu.wait()
            if not late:
                return float(self._events.get_elapsed_time(begin, end)) / 1e3 / repeats
            self._cycles *= 2
            if self._cycles > LONGEST:
                self._cycles = FIRST
                if repeats == 1:
                    raise DeviceError("a launch takes the host longer than any wait")
                repeats = -(-repeats // 4)

    def repeats(self, enqueue: Enqueue) -> int:
        """How many make a sample."""
        for i in range(SETTLED):
            enqueue(i)
        self._gpu.wait()
        return max(1, min(MOST, round(SAMPLE / self.seconds(enqueue, SETTLED))))


def contender(clock: Clock, row: Measurement, enqueue: Enqueue | str) -> Contender:
    """One who launches a case and does not wait. Absent is who fails, be it at the first try or
    later; `enqueue` may be the reason already."""
    if isinstance(enqueue, str):
        return Contender(row, absent=enqueue)
    try:
        repeats = clock.repeats(enqueue)
    except Exception as error:  # peers raise what they like
        return Contender(row, absent=first_line(error))
    return Contender(row, timed(partial(clock.seconds, enqueue, repeats)), excused=Exception)


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
