"""The emulator follows CUDA's rules and is a device; right kernels raise nothing, and every fault
that it promises to detect is reported with its line."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.cuda.emulator import Emulator, compiler
from kernels.cuda.runtime.device import Buffer, DeviceError, upload
from kernels.cuda.runtime.launch import FOLDER, Grid, Launch
from kernels.errors import KernelError
from reference.op import Array

pytestmark = pytest.mark.skipif(not compiler(), reason="no C++ compiler")
Run = Callable[..., Array]
THREADS = 64
SIGNATURE = "x: i32[n] -> out: i32[n]"


def tiny(folder: Path, body: str, blocks: int = 1, shared: int = 0) -> Launch:
    """A kernel with this body, with `n` ints x as input and as many as output."""
    text = '#include "portable.cuh"\n__constant__ int TABLE[40] = {1, 2, 3, 4};\n'
    text += f'extern "C" __global__ void tiny(const int* x, int* out, int n) {{\n{body}\n}}\n'
    (folder / "tiny.cu").write_text(text)
    shutil.copy(FOLDER / "portable.cuh", folder)
    grid = Grid((blocks, 1, 1), THREADS, shared)
    return Launch("tiny.cu", "tiny", SIGNATURE, lambda _: grid, folder=folder)


def bodies(file: str) -> dict[str, tuple[str, str]]:
    """Kernel bodies of a file in conformance/cuda by name: expected words, and body."""
    text = Path(__file__).with_name(file).read_text()
    _, *parts = re.split(r"^// ([a-z-]+):(?: (.+))?$", text, flags=re.MULTILINE)
    return {name: (words, body) for name, words, body in zip(*[iter(parts)] * 3, strict=True)}


@dataclass(frozen=True, slots=True)
class LaunchedArray:
    """A launch over an array on a device; its result is initially -1."""

    device: Emulator
    source: Buffer
    target: Buffer

    @classmethod
    def of(cls, device: Emulator, launch: Launch, x: Array) -> "LaunchedArray":
        own = cls(device, upload(device, x), upload(device, np.full(len(x), -1, np.int32)))
        shape = {"n": len(x)}
        values = launch.values({"x": own.source.address, "out": own.target.address}, shape)
        device.launch(launch, launch.at(shape), values)
        return own

    def result(self) -> Array:
        found = np.empty(self.target.bytes // 4, np.int32)
        self.device.read(self.target, found)
        return found


@pytest.fixture
def run(tmp_path):
    """Runs a body on 0, 1, 2, ..., then again with threads and blocks in reverse order."""

    def both(body: str, **grid: int) -> Array:
        launch, device = tiny(tmp_path, body, **grid), Emulator()
        x = np.arange(THREADS, dtype=np.int32)
        first, again = (LaunchedArray.of(device, launch, x).result() for _ in range(2))
        assert_array_equal(again, first)
        return first

    return both


# Results of each body of right.cu for 0, 1, 2, ...
RIGHT: dict[str, Callable[[Array], Array]] = {
    "an-early-return": lambda x: np.where(x < len(x) - 5, x, -1),
    "reversed-in-shared-memory": lambda x: x[::-1] + 2,
    "dynamic-shared-memory": lambda x: np.roll(x, -1),
    "shared-memory-in-a-warp": lambda x: x + (x ^ 1),
    "halves-of-a-warp-then-all": lambda x: x ^ 16,
    "shuffles": lambda x: np.full_like(x, 6),
    "shuffles-of-some-then-of-all": lambda x: x ^ 9,
    "lanes-that-run-ahead": lambda x: x // 32 * 32 + np.where(x % 32 < 16, 0, 1000),
    "votes": lambda x: np.full_like(x, 4),
    "atomics": lambda x: np.full_like(x, 64000 + 63 + 7),
    "atomics-of-blocks": lambda x: np.full_like(x, -1 + 1 + 2 + 3),
    "tables": lambda x: 20 + 4 * (x % 4 + 1),
    "sixteen-bytes-at-once": lambda x: np.where(x % 4 == 1, 2 * x - 1, x),
    "what-a-gpu-would-wrap": lambda x: x - 56,
}
GRIDS = {"dynamic-shared-memory": {"shared": 4 * THREADS}, "atomics-of-blocks": {"blocks": 3}}


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_raise_nothing(name, run):
    """Right kernels raise nothing and give CUDA's results, in both orders of threads and blocks."""
    _, body = bodies("right.cu")[name]
    x = np.arange(THREADS, dtype=np.int32)
    assert_array_equal(run(body, **GRIDS.get(name, {})), RIGHT[name](x))


def test_every_second_launch_reverses_threads_and_blocks(tmp_path):
    """A kernel cannot rely on an order of threads or blocks."""
    launch = tiny(
        tmp_path,
        "  if (threadIdx.x % 32 == 0) out[atomicAdd(&out[7], 1) + 1] = threadIdx.x;",
        blocks=1,
    )
    device, x = Emulator(), np.arange(8, dtype=np.int32)
    assert LaunchedArray.of(device, launch, x).result()[:2].tolist() == [0, 32]
    assert LaunchedArray.of(device, launch, x).result()[:2].tolist() == [32, 0]


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
def test_launches_beyond_a_gpus_limits_are_refused(grid, words, tmp_path):
    launch = tiny(tmp_path, "  out[0] = 0;")
    with pytest.raises(KernelError, match=words):
        Emulator().launch(launch, grid, [])


def test_a_grid_without_blocks_does_nothing(tmp_path):
    launch = tiny(tmp_path, "  out[0] = 0;", blocks=0)
    assert_array_equal(
        LaunchedArray.of(Emulator(), launch, np.arange(4, dtype=np.int32)).result(), np.full(4, -1)
    )


def test_recorded_launches_run_on_every_replay(tmp_path):
    """Recording runs nothing; a replay reads the memory as it is at that time."""
    launch, device = tiny(tmp_path, "  out[threadIdx.x] += x[threadIdx.x];"), Emulator()
    x = np.arange(THREADS, dtype=np.int32)
    with device.capture() as again:
        late = LaunchedArray.of(device, launch, x)
    assert_array_equal(late.result(), np.full(THREADS, -1))
    again()
    again()
    assert_array_equal(late.result(), 2 * x - 1)


def test_memory_is_counted_and_freed():
    """Allocated memory counts until it is dropped; more than is free is an error that says so."""
    device = Emulator(1000)
    buffer = device.empty(600)
    assert device.memory() == (400, 1000)
    assert buffer.address % 256 == 0
    with pytest.raises(DeviceError, match="600 bytes wanted, 400 of 1,000 are free"):
        device.empty(600)
    del buffer
    assert device.memory() == (1000, 1000)


def test_compile_errors_name_the_line(tmp_path):
    launch = tiny(tmp_path, "  out[0] = nothing;")
    with pytest.raises(KernelError, match=r"(?s)tiny does not compile as C\+\+.*tiny.cu:4"):
        Emulator().prepare(launch)


FAULTS = bodies("faults.cu")


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_detected_with_their_line(fault, tmp_path):
    """Each fault is detected in both orders of threads and blocks."""
    words, body = FAULTS[fault]
    launch = tiny(tmp_path, body, blocks=2 if "block" in fault else 1, shared=4 * THREADS - 4)
    lines = (tmp_path / "tiny.cu").read_text().splitlines()
    wrong = [f"tiny.cu:{i + 1}" for i, line in enumerate(lines) if line.endswith("// !")]
    device = Emulator()
    for _ in range(2):
        with pytest.raises(KernelError, match=words) as found:
            LaunchedArray.of(device, launch, np.arange(THREADS, dtype=np.int32))
        assert str(found.value).startswith("tiny: block ")
        assert any(line in str(found.value) for line in wrong), str(found.value)
