"""All CUDA kernels compiled, in several processes: one that keeps the compiler busy for ever, or
takes it down, costs only itself."""

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from bench.child import ChildError, Revived
from bench.cuda.threads import in_threads, taken
from bench.experiment import first_line
from kernels.cuda import nvrtc
from kernels.cuda.kernel import CudaKernel
from kernels.table import find_any

PATIENCE = 60.0  # seconds for the kernels of one source with the same definitions
HOME = "bench.cuda.compiling:complaints"


def program(kernel: CudaKernel) -> tuple[str, tuple[str, ...]]:
    """The source and the definitions of what it launches first."""
    return kernel.launches[0].source, kernel.launches[0].defines


@dataclass(slots=True)
class Compiled:
    """By kernel, why it does not compile; and those that were not reached in time."""

    complaints: dict[str, str] = field(default_factory=dict)
    unreached: list[str] = field(default_factory=list)


def compile_all(
    kernels: Sequence[CudaKernel],
    capability: int,
    workers: int,
    until: float,
    patience: float = PATIENCE,
    home: str = HOME,
) -> Compiled:
    """What there is to say of them at the moment `until`, of time.monotonic(), or before."""
    found = Compiled()
    waiting: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    for _, some in groupby(sorted(kernels, key=program), program):
        waiting.put([kernel.name for kernel in some])

    def ask(child: Revived, names: list[str]) -> None:
        left = max(0.0, until - time.monotonic())
        try:
            told = child.ask(min(patience, left), kernels=names, capability=capability)
            found.complaints.update(told)
        except ChildError as error:
            if time.monotonic() >= until:
                found.unreached += names
            else:
                found.complaints.update(dict.fromkeys(names, error.reason))

    def work() -> None:
        with Revived(home) as child:
            for names in taken(waiting, until):
                ask(child, names)

    in_threads(workers, work, waiting)
    while not waiting.empty():
        found.unreached += waiting.get()
    return found


def complaints(kernels: list[str], capability: int) -> dict[str, str]:
    """What a child does: compile these into the cache folder; why some do not compile."""
    found = {}
    for name in kernels:
        kernel = find_any(name)
        assert isinstance(kernel, CudaKernel)
        try:
            for launch in kernel.launches:
                nvrtc.kept(launch, capability)
        except Exception as error:  # of the compiler's, or a full disk
            found[name] = first_line(error)
    return found
