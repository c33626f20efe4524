"""Samples of kernels of one source tree: the child process of `bench.compare`.

Questions: {"kernels": true} for the digest of each kernel's sources; {"prepare": {kernel, shape,
cache}} to be ready for that case, in fresh memory; {"sample": true} for the seconds of a call.
"""

import sys
from typing import Any

from bench.cases import BenchCase
from bench.child import serve
from bench.contenders.session import settle
from bench.limits import Limits
from bench.op_run import Lab, OpRun
from bench.workload import Workload
from kernels.certificates import Key
from kernels.cpu.team import Team
from kernels.table import KERNELS, find


class Worker:
    """Holds the case that is being sampled."""

    def __init__(self, threads: int) -> None:
        self._lab = Lab(Team(threads), Limits.unprobed())
        self._run: OpRun | None = None

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if "kernels" in question:
            return {k.name: _digest(k.name) for k in KERNELS if not k.missing()}
        if "prepare" in question:
            asked = question["prepare"]
            bench = BenchCase(find(asked["kernel"]), asked["shape"], ())
            self._run = None  # its memory goes before the next is asked for
            self._run = OpRun(self._lab, Workload.of(bench), asked["cache"])
            return {}
        assert self._run is not None
        seconds = self._run()
        settle()
        return {"seconds": seconds}


def _digest(kernel: str) -> str:
    """Of everything that its machine code is made of; not of what judges it."""
    key = Key.of(find(kernel))
    return f"{key.source} {key.row}"


def main() -> None:
    """Argument: the number of threads."""
    serve(Worker(int(sys.argv[1])).answer)


if __name__ == "__main__":
    main()
