"""All CUDA kernels put before the judge on the GPU: in several processes, since the references are
what takes time, and so that a kernel which takes its process down costs only it."""

import queue
from collections.abc import Callable, Sequence

from bench.cuda.threads import in_threads, taken
from kernels.certificates import Certificate, Store
from kernels.certify import Trials, certify
from kernels.cuda.device import Device
from kernels.cuda.fusions import EVERY_CUDA
from kernels.cuda.kernel import CudaKernel
from kernels.trial import Request

WORKERS = 8
TOGETHER = 6  # kernels to a child
PATIENCE = 60.0  # seconds without a word


def judge_all(
    kernels: Sequence[CudaKernel],
    store: Store,
    seconds: float,
    until: float,
    tell: Callable[[Certificate], None],
) -> None:
    """Tell the certificates of those that were tried before the moment `until`; each kernel has so
    many seconds for all its cases, or what the quick ones take."""
    waiting: queue.SimpleQueue[Sequence[CudaKernel]] = queue.SimpleQueue()
    for first in range(0, len(kernels), TOGETHER):
        waiting.put(kernels[first : first + TOGETHER])

    def told(trials: Trials) -> None:
        if trials.certificate:
            tell(trials.certificate)

    def work() -> None:
        for some in taken(waiting, until):
            # with an end, or kernels that hang alike would be waited for one by one
            certify(
                [Request(k.name) for k in some],
                store,
                told,
                PATIENCE,
                ("bench.cuda.trial", str(seconds)),
                until,
            )

    in_threads(WORKERS, work, waiting)


def runnable(device: Device) -> list[CudaKernel]:
    """All kernels that a GPU can run, those of one source and format side by side."""

    def place(kernel: CudaKernel) -> tuple[str, str, str]:
        return kernel.launches[0].source, kernel.format or "", kernel.name

    found = [kernel for kernel in EVERY_CUDA if not kernel.lacks(device)]
    return sorted(found, key=place)
