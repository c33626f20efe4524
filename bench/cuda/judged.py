"""All CUDA kernels compiled, and put before the judge on the GPU: in several processes, since the
references are what takes time, and so that a kernel which takes its process down costs only it."""

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from bench.cuda.contest import first_line
from kernels.certificates import Certificate, Store
from kernels.certify import certify
from kernels.cuda import nvrtc
from kernels.cuda.device import Device
from kernels.cuda.fusions import EVERY_CUDA
from kernels.cuda.kernel import CudaKernel
from kernels.table import find_any

WORKERS = 8
TOGETHER = 6  # kernels to a child
PATIENCE = 60.0  # seconds without a word


def compile_one(name: str, capability: int) -> str:
    """Into the cache folder; what is wrong with it, or ""."""
    kernel = find_any(name)
    assert isinstance(kernel, CudaKernel)
    try:
        for launch in kernel.launches:
            nvrtc.kept(launch, capability)
    except Exception as error:  # of the compiler's, or a full disk
        return f"{name}: {first_line(error)}"
    return ""


def compile_all(kernels: Sequence[CudaKernel], capability: int, workers: int) -> list[str]:
    """What does not compile."""
    names = [kernel.name for kernel in kernels]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = pool.map(compile_one, names, [capability] * len(names))
        return [complaint for complaint in found if complaint]


def judge_all(
    kernels: Sequence[CudaKernel], store: Store, seconds: float, until: float
) -> list[Certificate]:
    """Certificates of those that were reached before the moment `until`; each kernel has so many
    seconds for all its cases, or what the quick ones take."""
    waiting: queue.SimpleQueue[Sequence[CudaKernel]] = queue.SimpleQueue()
    for first in range(0, len(kernels), TOGETHER):
        waiting.put(kernels[first : first + TOGETHER])
    found: list[Certificate] = []

    def told(_: int, certificate: Certificate) -> None:
        found.append(certificate)

    def work() -> None:
        while time.monotonic() < until:
            try:
                some = waiting.get_nowait()
            except queue.Empty:
                return
            # with an end, or kernels that hang alike would be waited for one by one
            certify(some, store, told, PATIENCE, ("bench.cuda.trial", str(seconds)), until)

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def runnable(device: Device) -> list[CudaKernel]:
    """All kernels that a GPU can run, those of one source and format side by side."""

    def place(kernel: CudaKernel) -> tuple[str, str, str]:
        return kernel.launches[0].source, kernel.format or "", kernel.name

    found = [kernel for kernel in EVERY_CUDA if not kernel.lacks(device)]
    return sorted(found, key=place)
