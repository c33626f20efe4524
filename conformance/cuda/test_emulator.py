"""The emulator does what CUDA says, finds nothing wrong where nothing is, and is a device."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.cuda.emulator import Emulator, compiler
from conformance.support.tiny_cuda import THREADS, Started, tiny
from kernels.cuda.device import DeviceError
from kernels.cuda.launch import Grid
from kernels.errors import KernelError
from reference.op import Array

pytestmark = pytest.mark.skipif(not compiler(), reason="no C++ compiler")
Run = Callable[..., Array]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a body on 0, 1, 2, ..., and then once more, with threads and blocks in reverse order."""

    def both(body: str, n: int = THREADS, **grid: int) -> Array:
        launch, device = tiny(tmp_path, body, **grid), Emulator()
        x = np.arange(n, dtype=np.int32)
        first, again = (Started.of(device, launch, x).result() for _ in range(2))
        assert_array_equal(again, first)
        return first

    return both


# Bodies in which nothing is wrong, and what they make of 0, 1, 2, ...
RIGHT: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "an-early-return": ("""
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n - 5) return;
  out[i] = x[i];""", lambda x: np.where(x < len(x) - 5, x, -1)),
    "reversed-in-shared-memory": ("""
  __shared__ int held[64];
  for (int i = 0; i < 3; ++i) {
    held[threadIdx.x] = x[threadIdx.x] + i;
    __syncthreads();
    out[threadIdx.x] = held[63 - threadIdx.x];
    __syncthreads();
  }""", lambda x: x[::-1] + 2),
    "dynamic-shared-memory": ("""
  DYNAMIC_SHARED(int, held);
  held[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = held[(threadIdx.x + 1) % 64];""", lambda x: np.roll(x, -1)),
    "shared-memory-in-a-warp": ("""
  __shared__ int held[64];
  held[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  const int sum = held[threadIdx.x] + held[threadIdx.x ^ 1];
  __syncwarp();
  held[threadIdx.x] = sum;
  __syncwarp();
  out[threadIdx.x] = held[threadIdx.x ^ 1];""", lambda x: x + (x ^ 1)),
    "halves-of-a-warp-then-all": ("""
  __shared__ int held[64];
  if (threadIdx.x % 32 < 16) {
    __syncwarp(0xffffu);
    held[threadIdx.x] = x[threadIdx.x];
    __syncwarp(0xffffu);
  } else {
    held[threadIdx.x] = x[threadIdx.x];
  }
  __syncwarp();
  out[threadIdx.x] = held[threadIdx.x ^ 16];""", lambda x: x ^ 16),
    "shuffles": ("""
  const int own = x[threadIdx.x], lane = own % 32;
  int found = __shfl_sync(ALL, own, 31 - lane) == own - lane + 31 - lane;
  found += __shfl_xor_sync(ALL, own, 5) == (own ^ 5);
  found += __shfl_down_sync(ALL, own, 3) == (lane + 3 < 32 ? own + 3 : own);
  found += __shfl_up_sync(ALL, own, 3) == (lane < 3 ? own : own - 3);
  found += __shfl_sync(ALL, 0.5 * own, 7) == 0.5 * (own - lane + 7);
  found += __shfl_sync(ALL, static_cast<uint64_t>(own) << 40, 7) >> 40 == own - lane + 7u;
  out[threadIdx.x] = found;""", lambda x: np.full_like(x, 6)),
    "shuffles-of-some-then-of-all": ("""
  const int own = x[threadIdx.x];
  int found = own;
  if (own % 32 < 8) {
    found = __shfl_xor_sync(0xffu, found, 1);
    found = __shfl_xor_sync(0xffu, found, 2);
    found = __shfl_xor_sync(0xffu, found, 3);
  }
  out[threadIdx.x] = __shfl_xor_sync(ALL, found, 9);""", lambda x: x ^ 9),
    "lanes-that-run-ahead": ("""
  int found = __shfl_sync(ALL, x[threadIdx.x], 0);
  if (threadIdx.x % 32 >= 16)
    for (int i = 0; i < 5; ++i) found += __shfl_sync(0xffff0000u, 100 * i, 16 + i);
  out[threadIdx.x] = found;""", lambda x: x // 32 * 32 + np.where(x % 32 < 16, 0, 1000)),
    "votes": ("""
  const int own = x[threadIdx.x];
  const uint32_t odd = __ballot_sync(ALL, own & 1);
  int found = odd == 0xaaaaaaaau;
  found += __any_sync(ALL, own % 32 == 9) && !__any_sync(ALL, own < 0);
  found += __all_sync(ALL, own >= 0) && !__all_sync(ALL, own % 32 != 9);
  found += __match_any_sync(ALL, own % 4) == 0x11111111u << own % 4;
  out[threadIdx.x] = found;""", lambda x: np.full_like(x, 4)),
    "atomics": ("""
  __shared__ int count, most, least, first;
  if (threadIdx.x == 0) count = most = 0, least = 1000, first = -1;
  __syncthreads();
  atomicAdd(&count, 1);
  atomicMax(&most, x[threadIdx.x]);
  atomicMin(&least, x[threadIdx.x]);
  atomicCAS(&first, -1, 7);
  __syncthreads();
  out[threadIdx.x] = 1000 * count + 100 * least + most + first;""",
                lambda x: np.full_like(x, 64000 + 63 + 7)),
    "atomics-of-blocks": ("""
  atomicAdd(&out[x[threadIdx.x]], blockIdx.x + 1);""", lambda x: np.full_like(x, -1 + 1 + 2 + 3)),
    "tables": ("""
  constexpr int LOCAL[4] = {4, 3, 2, 1};
  int sum = 0;
  for (int i = 0; i < 4; ++i) sum += LOCAL[i] * TABLE[i] + TABLE[x[threadIdx.x] % 4];
  for (int i = 4; i < 40; ++i) sum += TABLE[i] * x[i];
  out[threadIdx.x] = sum;""", lambda x: 20 + 4 * (x % 4 + 1)),
    "sixteen-bytes-at-once": ("""
  if (threadIdx.x >= 16) return;
  int4 four = reinterpret_cast<const int4*>(x)[threadIdx.x];
  four.y += four.x;
  reinterpret_cast<int4*>(out)[threadIdx.x] = four;""",
                              lambda x: np.where(x % 4 == 1, 2 * x - 1, x)),
    "what-a-gpu-would-wrap": ("""
  const uint32_t large = 0xffffff00u + x[threadIdx.x];
  out[threadIdx.x] = static_cast<int>((large << 24) >> 24) + static_cast<int8_t>(200);""",
                              lambda x: x - 56),
}  # fmt: skip
GRIDS = {"dynamic-shared-memory": {"shared": 4 * THREADS}, "atomics-of-blocks": {"blocks": 3}}


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_found_where_nothing_is_wrong(name: str, run: Run) -> None:
    """And the result is what CUDA says, in whatever order threads and blocks come."""
    body, expected = RIGHT[name]
    x = np.arange(THREADS, dtype=np.int32)
    assert_array_equal(run(body, **GRIDS.get(name, {})), expected(x))


def test_threads_and_blocks_come_in_reverse_every_second_time(tmp_path: Path) -> None:
    """So an order that a kernel relies on is not always there."""
    launch = tiny(
        tmp_path,
        "  if (threadIdx.x % 32 == 0) out[atomicAdd(&out[7], 1) + 1] = threadIdx.x;",
        blocks=1,
    )
    device, x = Emulator(), np.arange(8, dtype=np.int32)
    assert Started.of(device, launch, x).result()[:2].tolist() == [0, 32]
    assert Started.of(device, launch, x).result()[:2].tolist() == [32, 0]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        (Grid((1, 1, 1), 33), "blocks of no whole warps"),
        (Grid((1, 1, 1), 0), "blocks of no whole warps"),
        (Grid((1, 1, 1), 1056), "more than 1024 threads in a block"),
        (Grid((1, 2**16, 1), 32), "so many blocks"),
        (Grid((1, 1, 1), 32, 228 << 10), "more than 232,448 bytes of shared memory"),
    ],
)
def test_what_no_gpu_launches_is_refused(grid: Grid, words: str, tmp_path: Path) -> None:
    launch = tiny(tmp_path, "  out[0] = 0;")
    with pytest.raises(KernelError, match=words):
        Emulator().launch(launch, grid, [])


def test_a_grid_without_blocks_does_nothing(tmp_path: Path) -> None:
    launch = tiny(tmp_path, "  out[0] = 0;", blocks=0)
    assert_array_equal(
        Started.of(Emulator(), launch, np.arange(4, dtype=np.int32)).result(), np.full(4, -1)
    )


def test_a_launch_that_is_recorded_runs_later_and_again(tmp_path: Path) -> None:
    """Nothing runs while it is recorded; what is recorded reads what is there when it runs."""
    launch, device = tiny(tmp_path, "  out[threadIdx.x] += x[threadIdx.x];"), Emulator()
    x = np.arange(THREADS, dtype=np.int32)
    with device.capture() as again:
        late = Started.of(device, launch, x)
    assert_array_equal(late.result(), np.full(THREADS, -1))
    again()
    again()
    assert_array_equal(late.result(), 2 * x - 1)


def test_memory_is_counted_and_comes_back() -> None:
    """What is taken is missing until it is dropped; more than is left is an error that says so."""
    device = Emulator(1000)
    buffer = device.empty(600)
    assert device.memory() == (400, 1000)
    assert buffer.address % 256 == 0
    with pytest.raises(DeviceError, match="600 bytes wanted, 400 of 1,000 are free"):
        device.empty(600)
    del buffer
    assert device.memory() == (1000, 1000)


def test_a_source_that_does_not_compile_says_where(tmp_path: Path) -> None:
    launch = tiny(tmp_path, "  out[0] = nothing;")
    with pytest.raises(KernelError, match=r"(?s)tiny does not compile as C\+\+.*tiny.cu:4"):
        Emulator().prepare(launch)
