"""Our own kernel of an op on a leaderboard: the one that an engine would choose, tried in this
process with all laws, and timed on hot and cold caches."""

import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from bench.board.rows import Row
from bench.machine.limits import Limits
from bench.ops.cases import CACHES
from bench.ops.op_run import Lab, prepared
from bench.ops.single_op import compile_all
from bench.ops.workload import Workload
from bench.shell.op import serving
from kernels.cpu.runtime.team import Team
from kernels.foreign.laws import AGAIN, THREADS
from kernels.kernel import Kernel
from kernels.table import variants
from kernels.trial import CASES, Request, attempt, held, law_cases, laws_of
from reference.op import Case, Op

NAME = "assay"
EXACT = {"float32": "exact"}  # our names of what a leaderboard calls otherwise


@dataclass(frozen=True, slots=True)
class Ours:
    """A kernel and the result of its trial."""

    kernel: Kernel
    tried: Row

    def rows(self, shape: str) -> list[Row]:
        """Its rows at a shape, one for each cache state."""
        return [replace(self.tried, shape=shape, name=f"{self.tried.name}, {c}") for c in CACHES]


def ours(op: Op, format: str | None, machine: str, threads: int) -> Ours | None:
    """The first of our kernels with exact numerics that this machine can run, tried; None where the
    op has none."""
    exact = [k for k in variants(op.name, format) if k.numerics == "exact" and not k.missing()]
    known = serving(exact)
    if not known:
        return None
    kernel, secret = known[0], secrets.randbits(31)
    compile_all([kernel], lambda _: lambda *_: None)
    numerics = EXACT.get(kernel.activations, kernel.activations)
    row = Row(machine, op.name, format or "", "", threads, f"{NAME} {kernel.variant}", "passed",
              numerics=numerics)  # fmt: skip
    for one in attempt(kernel, Request(kernel.name), secret):
        verdict = one.verdict
        if not verdict.passed:
            return Ours(kernel, replace(row, verdict="wrong", worst=math.inf, why=verdict.failure))
        if one.stage == CASES:
            row = replace(row, worst=max(row.worst, verdict.worst))
            if verdict.case.values == "normal":
                nmse, ordinary = max(row.nmse, verdict.nmse), max(row.ordinary, verdict.worst)
                row = replace(row, nmse=nmse, ordinary=ordinary)
    kept, lost = [AGAIN, THREADS], list[str]()  # which every case demands
    for law in laws_of(kernel):
        right = all(held(kernel, law, case).passed for case in law_cases(kernel, secret))
        (kept if right else lost).append(law.name)
    return Ours(kernel, replace(row, held=tuple(kept), broken=tuple(lost)))


@contextmanager
def samplers(
    mine: Ours, case: Case, limits: Limits, threads: int
) -> Iterator[Mapping[str, Callable[[], float]]]:
    """Samplers of its time, by the names of its rows; none if it does not take the shape."""
    if not mine.kernel.takes(case.shape):
        yield {}
        return
    with Team(threads) as team:
        works = {mine.tried.name: Workload.on(mine.kernel, case)}
        runs, _ = prepared(Lab(team, limits), works)
        yield {", ".join(name): run for name, run in runs.items()}
