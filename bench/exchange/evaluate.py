"""Judges and times solutions; writes traces: errors, and speed against the reference."""

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flashinfer_bench.data import BuildSpec, Definition, Solution, SourceFile, Trace, Workload

from bench.board.run import MOST_CALLS
from bench.exchange.dataset import Dataset, ExchangeError, parsed
from bench.exchange.ops import NOT_DERIVED, candidate_of, op_of
from bench.machine.conditions import Conditions, conditions
from bench.machine.limits import Limits
from bench.race.experiment import Rule, race
from kernels.foreign.candidate import Candidate
from kernels.foreign.child import Child
from kernels.foreign.child import Limits as ChildLimits
from kernels.foreign.judge import Level, Progress, judge
from kernels.foreign.layout import laid_out
from kernels.foreign.report import Failed, Report
from kernels.foreign.samples import CAUGHT, sampled
from kernels.foreign.turns import Turns
from reference.op import Case, Op

# flashinfer-bench's status by verdict and what the reason says; the first that fits counts.
STATUS = (
    ("passed", "", "PASSED"),
    ("wrong", "", "INCORRECT_NUMERICAL"),
    ("hung", "", "TIMEOUT"),
    ("refused", "cannot be loaded", "COMPILE_ERROR"),
    ("raised", "it gives torch.", "INCORRECT_DTYPE"),
    ("raised", "it returned", "INCORRECT_SHAPE"),
    ("", "", "RUNTIME_ERROR"),
)
SMALLEST = 1e-8  # below which a reference counts as zero, as in flashinfer-bench
RULE = Rule(least=5, cap_seconds=2.0, most=50)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A solution at the workloads of its definition: the judge's report, and a trace of each."""

    solution: Solution
    report: Report
    traces: tuple[Trace, ...]


def evaluate(
    dataset: Dataset,
    solutions: Sequence[Solution],
    found_here: Limits,
    level: Level = "quick",
    threads: int = 1,
    rule: Rule = RULE,
) -> Iterator[Evaluated | ExchangeError]:
    """Evaluate each in turn; one that cannot be judged here is reported, and the others
    continue."""
    about = conditions()
    for solution in solutions:
        definition = dataset.definitions[solution.definition]
        workloads = dataset.workloads(definition.name)
        with tempfile.TemporaryDirectory(prefix="solution-") as folder:
            try:
                op = op_of(definition, workloads, dataset.root)
                candidate = candidate_of(solution, definition, Path(folder, "solution"))
                report = _with_note(judge(candidate, op, level=level))
                reference = candidate_of(
                    _reference(definition), definition, Path(folder, "reference")
                )
            except ExchangeError as error:
                yield error
                continue
            clock = _Clock(op, candidate, reference, found_here, threads, rule)
            traces = tuple(
                Trace(
                    definition=definition.name, workload=workload, solution=solution.name,
                    evaluation=clock.evaluation(report, workload, about),
                )
                for workload in workloads
            )  # fmt: skip
            yield Evaluated(solution, report, traces)


def judged(
    path: Path, level: Level, limits: ChildLimits, secret: int | None = None,
    sizes: Mapping[str, int] | None = None, seed: int = 0, progress: Progress | None = None,
) -> Report:  # fmt: skip
    """Judge the file of one solution in its dataset, as `evaluate` does, or at one case of these
    sizes. The replay command names that file, too."""
    root = next((p for p in path.absolute().parents if (p / "definitions").is_dir()), None)
    if root is None:
        raise ExchangeError(f"{path}: no folder above it has definitions/, which a solution needs")
    if not path.is_file():
        raise ExchangeError(f"there is no file {path}")
    dataset, solution = Dataset(root), parsed(Solution, path)
    if solution.definition not in dataset.definitions:
        raise ExchangeError(f"{path}: {root} has no definition {solution.definition}")
    definition = dataset.definitions[solution.definition]
    op = op_of(definition, dataset.workloads(definition.name), root)
    case = op.case(dict(sizes), op.values[0], seed) if sizes else None
    with tempfile.TemporaryDirectory(prefix="solution-") as folder:
        candidate = candidate_of(solution, definition, Path(folder))
        report = judge(
            candidate, op, None, level, limits, secret=secret, case=case, progress=progress
        )

    def again(failed: Failed | None) -> Failed | None:
        if failed is None:
            return None
        words = ("assay", "judge", shlex.quote(str(path)), failed.case.describe())
        return replace(failed, replay=" ".join([*words, "--secret", str(report.secret)]))

    found = replace(report, first=again(report.first), shrunk=again(report.shrunk))
    return _with_note(replace(found, candidate=solution.name))


def _with_note(report: Report) -> Report:
    return replace(report, notes=(*report.notes, NOT_DERIVED))


def _reference(definition: Definition) -> Solution:
    """The definition's reference as a solution."""
    spec = BuildSpec(
        language="python", target_hardware=["cpu"], entry_point="reference.py::run",
        destination_passing_style=False,
    )  # fmt: skip
    source = SourceFile(path="reference.py", content=definition.reference)
    return Solution(
        name="reference", definition=definition.name, author="itself", spec=spec, sources=[source]
    )


def sol_score(seconds: float, base: float, light: float) -> float:
    """1 / (1 + (t - t_sol) / (t_base - t_sol)): 1 at the speed of light, a half at the baseline's
    speed. If the baseline is at the speed of light itself, only equal speed scores."""
    if base <= light:
        return 1.0 if seconds <= light else 0.0
    return 1 / (1 + max(0.0, seconds - light) / (base - light))


@dataclass(frozen=True, slots=True)
class _Clock:
    """Times a solution and its reference in turns, and fills the trace."""

    op: Op
    candidate: Candidate
    reference: Candidate
    limits: Limits
    threads: int
    rule: Rule

    def evaluation(self, report: Report, workload: Workload, about: Conditions) -> dict[str, Any]:
        """The evaluation of a workload for a trace. A solution that failed anywhere passed
        nowhere."""
        found: dict[str, Any] = {
            "status": status(report.verdict, report.reason),
            "environment": {"hardware": about.device, "libs": dict(about.versions)},
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "log": "; ".join(filter(None, (report.reason, *report.notes))),
        }
        case = self.op.case({a: n for a, n in workload.axes.items() if a in self.op.axes})
        if found["status"] not in ("PASSED", "INCORRECT_NUMERICAL"):
            return found
        try:
            errors = self._errors(case)
            if report.passed:
                found |= self._performance(case, errors)
        except CAUGHT as error:
            return found | {"status": status(getattr(error, "kind", "raised")), "log": str(error)}
        return found | {"correctness": errors}

    def _errors(self, case: Case) -> dict[str, Any]:
        """The largest |out - reference|, absolute and relative to |reference|."""
        rng = np.random.default_rng()
        inputs = self.op.make(case)
        with Child(self.candidate, laid_out(self.candidate, self.op), ChildLimits()) as child:
            outputs = Turns(child, self.op, None, rng).call(inputs, case.shape, rng)
        absolute = relative = 0.0
        for name, want in self.op.expected(inputs).items():
            error = np.abs(outputs[name].astype(np.float64) - want)
            absolute = float(np.max(error, initial=absolute))  # a NaN stays one
            relative = float(np.max(error / (np.abs(want) + SMALLEST), initial=relative))
        return {"max_absolute_error": absolute, "max_relative_error": relative}

    def _performance(self, case: Case, errors: dict[str, Any]) -> dict[str, Any]:
        with ExitStack() as stack:
            timed = partial(
                sampled, spec=self.op, format=None, shape=case.shape,
                limits=ChildLimits(threads=self.threads), most_calls=MOST_CALLS,
            )  # fmt: skip
            running = {
                name: stack.enter_context(timed(who))
                for name, who in (("solution", self.candidate), ("reference", self.reference))
            }
            samples = race(running, self.rule)
        seconds, before = (float(np.median(samples[name])) for name in running)
        cost = self.op.cost(case.shape, None)
        limit = self.limits.limit(cost, "float32", self.threads, int(cost.bytes))
        light = limit.seconds if limit else 0.0
        errors["extra"] = {"sol_score": sol_score(seconds, before, light), "sol_ms": 1e3 * light}
        return {
            "performance": {
                "latency_ms": 1e3 * seconds,
                "reference_latency_ms": 1e3 * before,
                "speedup_factor": before / seconds,
            }
        }


def status(verdict: str, reason: str = "") -> str:
    """A verdict as flashinfer-bench's status."""
    return next(to for at, said, to in STATUS if at in ("", verdict) and said in reason)
