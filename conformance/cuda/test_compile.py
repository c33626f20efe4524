"""Every CUDA kernel compiles for the GPUs that it says it runs on, and spills nothing."""

import os
import shutil
import signal
import struct
import threading
import time
from itertools import islice
from zlib import crc32

import pytest

from conformance.support.depth import DEEP
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime import nvrtc
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.launch import Launch

CAPABILITIES = (75, 80, 90)
MOST_REGISTERS, ALL_REGISTERS = 255, 2**16  # of a thread, of all that run at once
MOST_SHARED = 48 << 10  # bytes that a kernel may declare
pytestmark = pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())


def capabilities(kernel: CudaKernel, launch: Launch) -> list[int]:
    """Those that a source is compiled for, with all its functions: one drawn by its name, deeply
    all that the kernel says it runs on."""
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
    """What an ELF file's header says: where the last of its tables ends."""
    programs, sections = struct.unpack_from("<QQ", file, 32)
    program, n_programs, section, n_sections = struct.unpack_from("<HHHH", file, 54)
    return max(programs + program * n_programs, sections + section * n_sections)


def most_threads(launch: Launch, kernel: CudaKernel) -> int:
    """Of a block, over the quick cases."""
    cases = kernel.spec.quick_cases(kernel.format)
    return max(launch.grid(case.shape).threads for case in cases if kernel.takes(case.shape))


@pytest.mark.parametrize(("launch", "capability", "kernel"), LAUNCHES.values(), ids=LAUNCHES.keys())
def test_compiles_and_spills_nothing(launch, capability, kernel, record_property):
    compiled = nvrtc.compiled(launch, capability)
    record_property("cuda", (launch.name, capability, compiled.registers, compiled.shared))
    assert len(compiled.cubin) == size_of_elf(compiled.cubin)
    assert not compiled.spills, f"{compiled.spills} bytes"
    assert 0 < compiled.registers <= MOST_REGISTERS
    assert compiled.registers * most_threads(launch, kernel) <= ALL_REGISTERS
    assert compiled.shared <= MOST_SHARED


def test_kept_machine_code_is_whole_and_ours(tmp_path, monkeypatch):
    """What was cut short, or could have been written by others, or is another's, is compiled
    anew."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    (launch, capability, _), (other, *_) = islice(LAUNCHES.values(), 2)
    path, another = (nvrtc.kept(each, capability) for each in (launch, other))
    whole = path.read_bytes()

    def exchange() -> None:
        for end in ("", ".sha256"):
            shutil.copy(f"{another}{end}", f"{path}{end}")

    assert another.read_bytes() != whole
    for spoil in (lambda: path.write_bytes(whole[:-9]), lambda: path.chmod(0o666), exchange):
        spoil()
        assert nvrtc.kept(launch, capability) == path
        assert (path.read_bytes(), path.stat().st_mode & 0o77) == (whole, 0)


def test_compiling_leaves_interrupts_alone():
    """Ctrl-C still ends what waits."""
    waits, wakes = os.pipe()
    timers = [
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)),
        threading.Timer(5, os.write, (wakes, b"late")),
    ]
    try:
        nvrtc._program.cache_clear()
        nvrtc.compiled(next(launch for launch, *_ in LAUNCHES.values()), 80)
        started = time.monotonic()
        for timer in timers:
            timer.start()
        with pytest.raises(KeyboardInterrupt):
            os.read(waits, 4)
        assert time.monotonic() - started < 4
    finally:
        for timer in timers:
            timer.cancel()
            timer.join()
        os.close(waits)
        os.close(wakes)
