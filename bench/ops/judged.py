"""Times a third-party kernel in turns with our own, PyTorch's, BLAS's and ggml's, whose functions
are timed in the same way: in a child over fresh inputs. So ggml reads weights in the file's layout,
and only ours are repacked.

Ours run on their team of threads in this process, on hot and on cold caches: the candidate's inputs
were written just before its calls, so the truth lies between.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from bench.ops.op_run import Lab, Teller, prepared
from bench.ops.single_op import compile_all
from bench.ops.workload import Workload, arithmetic_of
from bench.packages import lacking
from bench.race.experiment import Rule, race
from bench.race.ratio import ratio
from bench.race.results import Measurement
from bench.shell.op import serving
from kernels.cpu.runtime.cores import physical_cores
from kernels.cpu.runtime.team import Team
from kernels.foreign.candidate import Candidate, defined
from kernels.foreign.child import Limits
from kernels.foreign.report import Report, Timed
from kernels.foreign.samples import CAUGHT, Samples, sampled
from kernels.kernel import Kernel
from kernels.table import variants
from reference.op import Case, Op

SOLUTIONS = Path(__file__).parents[1] / "solutions"
SECONDS = 1.0  # seconds of the race for each contender
ROUNDS = 7  # at least
TOGETHER = 4  # rounds that are resampled together for an interval
SHORT = 2e-5  # seconds: of a shorter call much is start-up
Begin = Callable[..., AbstractContextManager[Samples]]


def timed(
    report: Report, candidate: Candidate, op: Op, limits: Limits, sizes: Mapping[str, int],
    teller: Callable[[str], Teller],
) -> Report:  # fmt: skip
    """The report of a candidate that has passed, with times; refused if it is wrong where it is
    timed, or faster than this machine can be."""
    if report.untimed:
        return replace(report, notes=(*report.notes, report.untimed))
    weights = report.format or None
    case = op.case(dict(sizes), op.values[0], 0, weights)
    ours = serving([k for k in variants(op.name, weights) if not k.missing()])
    ours = [kernel for kernel in ours if kernel.takes(case.shape)][:1]
    compile_all(ours, teller)
    with ExitStack() as stack:
        team = stack.enter_context(Team(limits.threads or physical_cores()))
        begin = partial(sampled, spec=op, format=weights, shape=case.shape, limits=limits)
        try:
            mine = stack.enter_context(begin(candidate, numerics=report.numerics))
            rivals, absent = _rivals(begin, op, case, stack)
            return _raced(report, mine, rivals, absent, ours, case, team, teller)
        except CAUGHT as found:
            return replace(report, verdict="refused", reason=str(found))


@dataclass(frozen=True, slots=True)
class Peer:
    """A library's functions of ops, and their requirement: a package, or an environment variable
    that tells where libraries are. `ops`: those that only its file defines."""

    name: str
    file: Path
    wants: str
    ops: tuple[str, ...] = ()

    def serves(self, op: str, format: str | None) -> bool:
        """Whether it has the op; Python functions take floats only."""
        if self.file.suffix == ".py" and format not in (None, "F32"):
            return False
        return (op in self.ops or not self.ops) and op in defined(self.file)

    @property
    def lacks(self) -> str:
        """Why it is absent, or ""."""
        if self.wants.isupper():
            here = self.wants in os.environ
            return "" if here else f"absent: {self.wants} says where its libraries lie"
        return f"absent: {self.wants} is not installed" if lacking([self.wants]) else ""


GGML = "LLAMA_CPP_LIB_PATH"
PEERS = (
    Peer("PyTorch", SOLUTIONS / "torch_ops.py", "torch"),
    Peer("BLAS (NumPy's)", SOLUTIONS / "numpy_ops.py", "numpy", ("linear",)),
    Peer("ggml", SOLUTIONS / "ggml_ops.c", GGML),
    Peer("ggml", SOLUTIONS / "ggml_linear.c", GGML),
    Peer("ggml", SOLUTIONS / "ggml_attention.c", GGML),
)


def _rivals(
    begin: Begin, op: Op, case: Case, stack: ExitStack
) -> tuple[dict[str, Samples], dict[str, str]]:
    """The peers that have the op and are right at this case; and why others are absent."""
    rivals: dict[str, Samples] = {}
    absent: dict[str, str] = {}
    for peer in PEERS:
        if not peer.serves(op.name, case.format):
            continue
        if said := peer.lacks:
            absent[peer.name] = said
            continue
        candidate = Candidate.of(f"{peer.file}:{op.name}")
        if case.format not in (None, *candidate.manifest.formats, "F32"):
            continue
        try:
            rivals[peer.name] = stack.enter_context(begin(candidate))
        except CAUGHT as found:
            absent[peer.name] = f"not timed: {found}"
    return rivals, absent


def _raced(
    report: Report, mine: Samples, rivals: Mapping[str, Samples], absent: Mapping[str, str],
    ours: list[Kernel], case: Case, team: Team,
    teller: Callable[[str], Teller],
) -> Report:  # fmt: skip
    cost = mine.op.cost(case.shape, case.format)
    lab = Lab.for_calls(team, [int(cost.bytes)], teller)
    made, left_out = prepared(lab, {f"assay {k.variant}": Workload.on(k, case) for k in ours})
    runs = {", ".join(name): run for name, run in made.items()}
    notes = [f"{name} was not timed: {why}" for (name, _), why in left_out.items()]
    samplers: dict[str, Callable[[], float]] = {report.candidate: mine, **rivals, **runs}
    rule = Rule(least=ROUNDS, cap_seconds=SECONDS * len(samplers))
    taken = race(samplers, rule, teller("timing in turns: rounds"))
    blank = Measurement("op", mine.op.name, threads=team.n_threads, bytes=cost.bytes,
                        operations=cost.operations)  # fmt: skip

    arithmetic = arithmetic_of(report.numerics, case.format)

    def limited(name: str) -> Measurement:
        row = replace(blank, samples=tuple(taken[name]))
        if name in runs:
            return runs[name].limited(row)
        limit = lab.limits.limit(cost, arithmetic, team.n_threads, int(cost.bytes))
        return limit.of(row) if limit else row

    if limited(report.candidate).impossible:  # memory may be faster than when it was probed
        lab.probe_again()
    shown = ",".join(f"{axis}={size}" for axis, size in case.shape.items())
    rows = tuple(_row(name, shown, taken[report.candidate], limited(name)) for name in samplers)
    rows += tuple(Timed(name, shown, 0.0, 0, note=why) for name, why in absent.items())
    if rows[0].seconds < SHORT:
        notes.append("a call is so short that much of its time is its start")
    report = replace(report, times=rows, notes=(*report.notes, *notes))
    if said := limited(report.candidate).impossible:
        return replace(report, verdict="refused", reason=f"faster than this machine can be: {said}")
    return report


def _row(name: str, shape: str, mine: list[float], row: Measurement) -> Timed:
    """A contender's time, with the candidate's over it."""
    compared = ratio(mine, row.samples, together=TOGETHER)
    return Timed(
        name, shape, median(row.samples), len(row.samples), compared.value, compared.low,
        compared.high, row.reached if row.share else 0.0, row.limit,
    )  # fmt: skip
