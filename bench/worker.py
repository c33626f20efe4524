"""Samples of kernels of one source tree: what the children of `bench.compare` have."""

from bench.cases import BenchCase
from bench.child import settle
from bench.limits import Limits
from bench.op_run import Lab, OpRun
from bench.workload import Workload
from kernels.certificates import Key
from kernels.cpu.runtime.team import Team
from kernels.table import KERNELS, find


class Worker:
    """Holds the case that is being sampled."""

    def __init__(self, threads: int) -> None:
        self._lab = Lab(Team(threads), Limits.unprobed())
        self._run: OpRun | None = None

    def kernels(self) -> dict[str, str]:
        """Of each, a digest of all that its machine code is made of; not of what judges it."""
        here = [kernel for kernel in KERNELS if not kernel.missing()]
        keys = {kernel.name: Key.of(kernel) for kernel in here}
        return {name: f"{key.source} {key.row}" for name, key in keys.items()}

    def prepare(self, kernel: str, shape: dict[str, int], cache: str) -> None:
        """Be ready for this case, in fresh memory."""
        self._run = None  # its memory goes before the next is asked for
        work = Workload.of(BenchCase(find(kernel), shape, ()))
        self._run = OpRun(self._lab, work, cache)

    def sample(self) -> float:
        """Seconds of a call."""
        assert self._run is not None
        seconds = self._run()
        settle()
        return seconds
