"""All CUDA kernels compiled, in several processes: one that keeps the compiler busy for ever, or
takes it down, costs only itself.

Run as a program (`python -m bench.cuda.compiling`) it is such a process: {"kernels", "capability"}
are those to compile into the cache folder.
"""

import queue
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

from bench.child import ChildError, Revived, serve
from kernels.cuda import nvrtc
from kernels.cuda.kernel import CudaKernel
from kernels.table import find_any

PATIENCE = 60.0  # seconds for the kernels of one source with the same definitions
MODULE = "bench.cuda.compiling"


def program(kernel: CudaKernel) -> tuple[str, tuple[str, ...]]:
    """The source and the definitions of what it launches first."""
    return kernel.launches[0].source, kernel.launches[0].defines


def compile_all(
    kernels: Sequence[CudaKernel],
    capability: int,
    workers: int,
    until: float,
    patience: float = PATIENCE,
    module: str = MODULE,
) -> dict[str, str]:
    """By kernel, why it was not compiled before the moment `until`, of time.monotonic()."""
    waiting: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    for _, some in groupby(sorted(kernels, key=program), program):
        waiting.put([kernel.name for kernel in some])
    complaints = {}

    def work() -> None:
        with Revived(module) as child:
            while (left := until - time.monotonic()) > 0:
                try:
                    names = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    child.ask({"kernels": names, "capability": capability}, min(patience, left))
                except ChildError as error:
                    complaints.update(dict.fromkeys(names, str(error)))

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work) for _ in range(workers)]:
            done.result()
    while not waiting.empty():
        complaints.update(dict.fromkeys(waiting.get(), "not reached in time"))
    return complaints


def answer(question: dict[str, Any]) -> dict[str, Any]:
    for name in question["kernels"]:
        kernel = find_any(name)
        assert isinstance(kernel, CudaKernel)
        for launch in kernel.launches:
            nvrtc.kept(launch, question["capability"])
    return {}


if __name__ == "__main__":
    serve(answer)
