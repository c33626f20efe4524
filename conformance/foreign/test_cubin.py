"""Cubins, which need a GPU, are read, described and launched, with the emulator as the GPU."""

import ctypes
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from kernels.cuda.runtime import nvrtc
from kernels.cuda.runtime.launch import Launch, items
from kernels.foreign.candidate import Candidate
from kernels.foreign.cubin import CubinError, read_kernel
from kernels.foreign.judge import judge
from kernels.foreign.layout import laid_out
from kernels.foreign.manifest import Manifest
from kernels.foreign.report import Report
from kernels.foreign.template import template
from reference.table import OPS

HERE = Path(__file__).parent
pytestmark = pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())
PARAMETERS = "float *x, const float *weight, float eps, float *out, int tokens, int hidden"
BODY = """
  __shared__ float factor;
  const long first = (long)blockIdx.x * hidden;
  if (threadIdx.x == 0) {
    double sum = 0;
    for (int i = 0; i < hidden; i++) sum += (double)x[first + i] * x[first + i];
    factor = 1 / sqrt(sum / hidden + eps);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < hidden; i += blockDim.x)
    out[first + i] = x[first + i] * factor * weight[i];
"""
KERNELS = {
    "right": BODY,
    "no_eps": BODY.replace(" + eps", ""),
    "one_more": BODY.replace("i < hidden; i +=", "i <= hidden; i +=").replace(
        "x[first + i] * factor * weight[i]", "i < hidden ? x[first + i] * factor * weight[i] : 0"
    ),
    "input": BODY + "  if (threadIdx.x == 0) x[first] = 0;\n",
    "outside": BODY + "  if (threadIdx.x == 0) out[first + (1 << 20)] = 0;\n",
}
SOURCE = "".join(
    f'extern "C" __global__ void __launch_bounds__(256) {name}({PARAMETERS}) {{{body}}}\n'
    for name, body in KERNELS.items()
)
ARGUMENTS = ("x", "weight", "eps:f32", "out", "tokens", "2 * hidden - hidden:i32")
MANIFEST = {
    "arguments": ARGUMENTS,
    "blocks": ("tokens",),
    "threads": 32,
    "takes": "tokens * hidden <= 2000",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with kernels.cu, and NVRTC's output for three GPUs."""
    found = tmp_path_factory.mktemp("cubins")
    (found / "kernels.cu").write_text(SOURCE)
    for capability in (80, 90, 120):
        (found / f"sm_{capability}.cubin").write_bytes(made(found, capability).cubin)
    return found


def made(folder: Path, capability: int, name: str = "right") -> nvrtc.Compiled:
    launch = Launch("kernels.cu", name, "x: f32[n] -> out: f32[n]", items(), folder=folder)
    return nvrtc.compiled(launch, capability)


def judged(folder: Path, name: str = "right", **said: object) -> Report:
    candidate = Candidate.of(f"{folder}/sm_80.cubin:{name}", **(MANIFEST | said))  # type: ignore[arg-type]
    return judge(candidate, "rms_norm", secret=7)


def test_cubin_metadata_equals_ptxas_report(folder: Path):
    """Registers and shared memory equal ptxas's report; parameters equal the source's."""
    for capability in (80, 90, 120):
        compiled = made(folder, capability)
        kernel = read_kernel(folder / f"sm_{capability}.cubin", "right")
        assert (kernel.capability, kernel.threads) == (capability, 256)
        assert (kernel.registers, kernel.shared) == (compiled.registers, compiled.shared)
        assert kernel.parameters == ((0, 8), (8, 8), (16, 4), (24, 8), (32, 4), (36, 4))


def test_damaged_cubins_are_refused(folder: Path, tmp_path: Path):
    """Other files, truncated and corrupted ones give a line with the error, never a traceback."""
    whole = (folder / "sm_90.cubin").read_bytes()
    others = {
        b"": "no ELF file",
        b"\n.version 8.4\n.target sm_80": "it is PTX",
        bytes.fromhex("50ed55ba01001000"): "fat binary",
        whole[:18] + b"\x3e\0" + whole[20:]: "for machine 62",
    }
    for number, (content, reason) in enumerate(others.items()):
        path = tmp_path / f"{number}.cubin"
        path.write_bytes(content)
        with pytest.raises(CubinError, match=reason):
            read_kernel(path, "right")
    rng = np.random.default_rng(3)
    for number in range(300):
        content = bytearray(whole)
        for at in rng.integers(len(whole), size=4):
            content[at] = rng.integers(256)
        path = tmp_path / f"corrupted{number}.cubin"
        path.write_bytes(content if number % 2 else whole[: int(rng.integers(len(whole)))])
        with suppress(CubinError):
            read_kernel(path, "right")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"name": "rms"}, "it has no kernel rms; it has input, no_eps, one_more, outside, right"),
        ({"arguments": ("x", "out")}, "right has 6 parameters, and 2 are described: x, out"),
        ({"arguments": ("x", "weight", "eps:f64", "out", "tokens", "hidden")}, "eps has 4 bytes"),
        ({"arguments": ("x", "weight", "eps", "out", "token", "hidden")}, "'token' is none of"),
        ({"arguments": ("x", "weight", "eps", "x", "tokens", "hidden")}, "no parameter out"),
        ({"blocks": ("token",)}, "token is none of tokens, hidden"),
        ({"blocks": ("tokens", "1 << 3")}, "is no expression of sizes"),
        ({"threads": "hidden * 64"}, "no GPU launches 2112x1x1 threads in a block"),
        ({"blocks": ()}, "`assay judge --template rms_norm --for cubin sm_80.toml` begins one"),
        ({"threads": 512}, "compiled for 256 threads, not 512"),
        ({"shared": 200_000}, "bytes of shared memory, sm_80 has 166,912"),
        ({"threads": (8, 8, 8, 8)}, "threads are in x, y and z"),
    ],
)
def test_mismatches_are_reported_without_a_gpu(folder: Path, said: dict, reason: str):
    """Missing symbols, other parameters and impossible launches are reported."""
    try:
        report = judged(folder, said.pop("name", "right"), **said)
        assert report.verdict == "refused"
        found = report.reason
    except ValueError as error:
        found = str(error)
    assert reason in found
    assert "\n" not in found


def test_launch_defaults():
    """Blocks and threads in y and z default to 1, threads in x to 256."""
    assert Manifest().launch({}) == [1, 1, 1, 256, 1, 1, 0]
    said = Manifest(blocks=("n", 2), threads=("n // 2", 4), shared="4 * n")
    assert said.launch({"n": 6}) == [6, 2, 1, 3, 4, 1, 24]


def test_a_missing_gpu_is_reported(folder: Path):
    """The line says what a launch needs, after all checks that need no GPU."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        report = judged(folder)
        assert report.verdict == "refused"
        assert (
            "on one of NVIDIA's of compute capability 8.0 to 8.9, and there is none"
            in report.reason
        )
        assert report.notes[1].startswith("right is for sm_80, has 6 parameters (of 8, 8, 4, 8, 4,")
    else:
        pytest.skip("there is a driver here")


@pytest.fixture(scope="module")
def emulated_driver(folder: Path) -> Path:
    """The folder, with a CUDA driver whose GPU is the emulator."""
    compiler = shutil.which("cc")
    if not compiler or not shutil.which("g++"):
        pytest.skip("no compiler for the emulator")
    for name in KERNELS:
        told = laid_out(Candidate.of(f"{folder}/kernels.cu:{name}"), OPS["rms_norm"]).told
        shutil.copy(told["library"], folder / f"{name}.so")
        shutil.copy(told["host"], folder / "host.so")
    options = ["-O1", "-shared", "-fPIC", f'-DFOLDER="{folder}"', "-o", folder / "libcuda.so.1"]
    subprocess.run([compiler, *options, HERE / "driver.c", "-ldl"], check=True)
    return folder


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("right", ""),
        ("no_eps", "out["),
        ("one_more", "it wrote before or behind out, outside of its bounds"),
        ("input", "it wrote to its input x"),
        ("outside", "cuLaunchKernel said: "),
    ],
)
def test_a_cubin_is_judged_on_a_gpu(
    emulated_driver: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
):
    """Every call of CUDA's driver is made as for a GPU, and wrong kernels are rejected."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(emulated_driver))
    report = judged(emulated_driver, name)
    assert report.passed == (name == "right"), report.reason
    assert report.reason.startswith(reason)
    assert report.cases > 20 or not report.passed
    assert report.untimed


def test_the_template_of_a_manifest(tmp_path: Path):
    """The manifest is next to the output of its CUDA template; it may also be elsewhere."""
    for kind, name in (("cuda", "mine.cu"), ("cubin", "mine.toml")):
        (tmp_path / name).write_text(template(OPS["linear"], kind))
    launch = Launch("mine.cu", "linear", "x: f32[n] -> out: f32[n]", items(), folder=tmp_path)
    cubin = tmp_path / "mine.cubin"
    cubin.write_bytes(nvrtc.compiled(launch, 80).cubin)
    candidate = Candidate.of(cubin)
    assert (candidate.manifest.op, candidate.manifest.format) == ("linear", "F32")
    assert "6 parameters" in laid_out(candidate, OPS["linear"]).notes[0]
    (tmp_path / "mine.toml").rename(tmp_path / "elsewhere.toml")
    assert Candidate.of(cubin, tmp_path / "elsewhere.toml").manifest == candidate.manifest
