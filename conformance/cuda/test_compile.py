"""Every CUDA kernel compiles for its compute capabilities, without register spills."""

import os
import shutil
import signal
import struct
import threading
import time
from zlib import crc32

import pytest

from conformance.support.depth import DEEP
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime import nvrtc, nvrtc_process
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.launch import Launch, items
from kernels.cuda.single import LAUNCHES as LAUNCHES_OF_ONE

CAPABILITIES = (75, 80, 90)
MOST_REGISTERS, ALL_REGISTERS = 255, 2**16  # of a thread, of a multiprocessor
MOST_SHARED = 48 << 10  # bytes of static shared memory
pytestmark = pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())


def capabilities(kernel: CudaKernel, launch: Launch) -> list[int]:
    """The compute capabilities to compile a source for: one by name, in deep runs all."""
    able = [capability for capability in CAPABILITIES if capability >= kernel.capability]
    drawn = crc32(f"{launch.source} {launch.format}".encode())
    return able if DEEP else [able[drawn % len(able)]]


LAUNCHES = {
    f"{launch.source} {launch.name} sm_{capability}": (launch, capability, kernel)
    for kernel in EVERY_CUDA
    for launch in kernel.launches
    for capability in capabilities(kernel, launch)
}


def size_of_elf(file: bytes) -> int:
    """The size according to an ELF header: the end of its last table."""
    programs, sections = struct.unpack_from("<QQ", file, 32)
    program, n_programs, section, n_sections = struct.unpack_from("<HHHH", file, 54)
    return max(programs + program * n_programs, sections + section * n_sections)


def most_threads(launch: Launch, kernel: CudaKernel) -> int:
    """The largest block over the quick cases."""
    cases = kernel.spec.quick_cases(kernel.format)
    return max(launch.at(case.shape).threads for case in cases if kernel.takes(case.shape))


@pytest.mark.parametrize(("launch", "capability", "kernel"), LAUNCHES.values(), ids=LAUNCHES.keys())
def test_compiles_and_spills_nothing(launch, capability, kernel, record_property):
    compiled = nvrtc.compiled(launch, capability)
    record_property("cuda", (launch.name, capability, compiled.registers, compiled.shared))
    assert len(compiled.cubin) == size_of_elf(compiled.cubin)
    assert not compiled.spills, f"{compiled.spills} bytes"
    assert 0 < compiled.registers <= MOST_REGISTERS
    assert compiled.registers * most_threads(launch, kernel) <= ALL_REGISTERS
    assert compiled.shared <= MOST_SHARED


def test_damaged_cached_cubins_are_recompiled(tmp_path, monkeypatch):
    """Cached machine code that is truncated, writable by others, or of another source is compiled
    anew; functions of one source share a file."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    (launch, capability, _), *_ = LAUNCHES.values()
    other = next(one for one, *_ in LAUNCHES.values() if one.source != launch.source)
    path, another = (nvrtc.kept(each, capability) for each in (launch, other))
    whole = path.read_bytes()

    def exchange() -> None:
        for end in ("", ".sha256"):
            shutil.copy(f"{another}{end}", f"{path}{end}")

    assert another.read_bytes() != whole
    for corrupt in (lambda: path.write_bytes(whole[:-9]), lambda: path.chmod(0o666), exchange):
        corrupt()
        assert nvrtc.kept(launch, capability) == path
        assert (path.read_bytes(), path.stat().st_mode & 0o77) == (whole, 0)
    both = (LAUNCHES_OF_ONE[op] for op in ("quantise_activations", "quantise_activations_256"))
    first, second = (nvrtc.kept(each, capability) for each in both)
    assert first == second
    assert len(list((tmp_path / "cuda").glob("*.cubin"))) == 3


# Makes a compiler run away: its work doubles at every depth.
ENDLESS = """template <int N, int M> struct Tree {
  static const int size = Tree<N - 1, 2 * M>::size + Tree<N - 1, 2 * M + 1>::size;
};
template <int M> struct Tree<0, M> { static const int size = 1; };
extern "C" __global__ void endless(int *out) { *out = Tree<28, 1>::size; }
"""
PLAIN = 'extern "C" __global__ void plain(int *out) { *out = 1; }'


@pytest.mark.parametrize(
    ("limit", "least", "told"),
    [
        ("SECONDS", 1, "the compiler was at it for more than 1 s"),
        ("MEMORY", 256 << 20, "0.25 GiB|out of memory"),
        ("PATIENCE", 0.5, "the compiler gave no answer within 0.5 s"),
    ],
)
def test_a_runaway_compiler_is_stopped(limit, least, told, tmp_path, monkeypatch):
    """It is stopped at its time limit, its memory limit or the caller's timeout; the next request
    works, and nothing is left of the one before."""
    launches = []
    for name, text in {"endless": ENDLESS, "plain": PLAIN}.items():
        (tmp_path / f"{name}.cu").write_text(text)
        launches.append(Launch(f"{name}.cu", name, "-> out: i32[n]", items("n"), folder=tmp_path))
    endless, plain = launches
    with monkeypatch.context() as limited:
        limited.setattr(nvrtc_process, limit, least)
        with pytest.raises(DeviceError, match=rf"^endless.cu does not .* sm_80: .*({told})"):
            nvrtc.compiled(endless, 80)
    assert nvrtc._COMPILER._running is None
    assert nvrtc.compiled(plain, 80).registers


def test_ctrl_c_ends_the_compiler(tmp_path):
    """Ctrl-C ends the waiting process and the compiler with it."""
    (tmp_path / "endless.cu").write_text(ENDLESS)
    endless = Launch("endless.cu", "endless", "-> out: i32[n]", items("n"), folder=tmp_path)
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        nvrtc.compiled(endless, 80)
    assert time.monotonic() - started < 4
    assert nvrtc._COMPILER._running is None
    timer.join()
