"""All CUDA kernels compiled, and put before the judge on the GPU: in several processes, since
compiler and references are what takes time, and so that a kernel which takes its process down, or
keeps the compiler busy for ever, costs only itself.

A trial has the op's quick cases, then as many random ones as there is time for. Run as a program
(`python -m bench.cuda.judged SECONDS`) this is the child of `kernels.certify`, as kernels.trial is.
"""

import queue
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from itertools import groupby
from typing import TypeVar

import numpy as np

from bench.child import ChildError, Revived
from bench.race.experiment import first_line
from kernels.call import AnyKernel
from kernels.certificates import Certificate, Store
from kernels.certify import Trials, certify
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime import nvrtc
from kernels.cuda.runtime.device import Device
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.judge import judge, replay
from kernels.table import find_any
from kernels.trial import CASES, Request, Tell, Tried, answer, certificate_of
from reference.op import Case, Op

WORKERS = 16
PATIENCE = 60.0  # seconds without a word, or for the kernels of one source and its definitions
HOME = "bench.cuda.judged:complaints"
GROWTH = 5 / 4  # how far beyond the largest awkward size random ones go
Piece = TypeVar("Piece")


def each(
    work: Callable[[Piece], None], pieces: Iterable[Piece], threads: int, until: float
) -> list[Piece]:
    """Do the work on every piece, in so many threads; the pieces that were not begun at the moment
    `until`, of time.monotonic(). What one raises is raised; after that, or Ctrl-C, none is begun.
    """
    late: list[Piece] = []

    def begin(piece: Piece) -> None:
        if time.monotonic() < until:
            work(piece)
        else:
            late.append(piece)

    with ThreadPoolExecutor(threads) as pool:
        try:
            for done in as_completed([pool.submit(begin, piece) for piece in pieces]):
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return late


def runnable(device: Device) -> list[CudaKernel]:
    """All kernels that a GPU can run, those of one source and format side by side."""

    def place(kernel: CudaKernel) -> tuple[str, str, str]:
        return kernel.launches[0].source, kernel.format or "", kernel.name

    found = [kernel for kernel in EVERY_CUDA if not kernel.lacks(device)]
    return sorted(found, key=place)


def program(kernel: CudaKernel) -> tuple[str, tuple[str, ...]]:
    """The source and the definitions of what it launches first."""
    return kernel.launches[0].source, kernel.launches[0].defines


def compile_all(
    kernels: Sequence[CudaKernel],
    capability: int,
    workers: int,
    until: float,
    patience: float = PATIENCE,
    home: str = HOME,
) -> tuple[dict[str, str], list[str]]:
    """By kernel, why it does not compile; and those that were not compiled at the moment `until`,
    of time.monotonic()."""
    found: dict[str, str] = {}
    unreached: list[str] = []
    children: queue.SimpleQueue[Revived] = queue.SimpleQueue()

    def compiled(names: list[str]) -> None:
        child, left = children.get(), max(0.0, until - time.monotonic())
        try:
            found.update(child.ask(min(patience, left), kernels=names, capability=capability))
        except ChildError as error:
            if time.monotonic() >= until:
                unreached.extend(names)
            else:
                found.update(dict.fromkeys(names, error.reason))
        finally:
            children.put(child)

    together = groupby(sorted(kernels, key=program), program)
    names = [[kernel.name for kernel in some] for _, some in together]
    with ExitStack() as stack:
        for _ in range(workers):
            children.put(stack.enter_context(Revived(home)))
        late = each(compiled, names, workers, until)
    return found, [*unreached, *(name for some in late for name in some)]


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


def judge_all(
    kernels: Sequence[CudaKernel],
    store: Store,
    seconds: float,
    until: float,
    tell: Callable[[Certificate], None],
) -> None:
    """Tell the certificates of those that were tried before the moment `until`; each kernel has so
    many seconds for all its cases, or what the quick ones take."""

    def told(trials: Trials) -> None:
        if trials.certificate:
            tell(trials.certificate)

    asked, child = [Request(kernel.name) for kernel in kernels], ("bench.cuda.judged", str(seconds))
    certify(asked, store, told, PATIENCE, child, until, WORKERS)


def random_cases(op: Op, format: str | None, rng: np.random.Generator) -> Iterator[Case]:
    """Awkward sizes and all between, without end."""
    while True:
        sizes = {
            axis: int(rng.choice(awkward))
            if tuple(awkward) == (0, 1) or rng.random() < 0.5  # the former are switches
            else int(rng.integers(min(awkward), int(max(awkward) * GROWTH) + 1))
            for axis, awkward in op.axes.items()
        }
        values = op.values[rng.integers(len(op.values))]
        yield op.case(sizes, values, int(rng.integers(2**32)), format)


def cases(kernel: AnyKernel, seconds: float) -> Iterator[Case]:
    """All quick ones, however long they take."""
    started = time.perf_counter()
    yield from kernel.spec.quick_cases(kernel.format)
    for case in random_cases(kernel.spec, kernel.format, np.random.default_rng(0)):
        if time.perf_counter() - started > seconds:
            return
        yield case


def tried(kernel: AnyKernel, request: Request, seconds: float, tell: Tell) -> Certificate:
    started = time.perf_counter()

    def attempt(case: Case) -> Tried:
        again = replay(kernel.name, case)
        tell(CASES, again)
        return Tried(CASES, judge(kernel, case), again)

    taken = (case for case in cases(kernel, seconds) if kernel.takes(case.shape))
    return certificate_of(kernel, map(attempt, taken), request, started)


def main() -> None:
    seconds = float(sys.argv[1])
    answer(lambda kernel, request, tell: tried(kernel, request, seconds, tell))


if __name__ == "__main__":
    main()
