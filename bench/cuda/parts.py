"""A check of a GPU: what it says, what failed, how long it may take, and its parts one after the
other."""

import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from bench.child import Revived, started
from bench.cuda import engine, jobs, sanitizer
from bench.cuda.clock import Ceilings
from bench.cuda.goals import GOALS, peers_lines
from bench.cuda.judged import compile_all, judge_all, runnable
from bench.cuda.measure import OURS
from bench.cuda.predict import ceilings as published
from bench.cuda.predict import of_goals
from bench.cuda.sweep import gains
from bench.machine.conditions import conditions
from bench.packages import lacking, versions
from bench.race.experiment import first_line
from bench.race.results import Measurement, Results
from data.gpus import gpus
from kernels.certificates import Certificate, Store
from kernels.cpu.runtime.cores import allowed_cores
from kernels.cuda.runtime import nvrtc, sass
from kernels.cuda.runtime.device import Device
from kernels.cuda.runtime.kernel import CudaKernel

# By when parts that could take longer have to end, as shares of all the time.
COMPILED, AIMED, JUDGED, SANITIZED, COMPARED = 0.2, 0.5, 0.7, 0.78, 0.86
PACKAGES = ("numpy", "numba", "torch", "triton", "gguf", "tokenizers")
RANDOM = 0.5  # seconds of random cases for each kernel


@dataclass(slots=True)
class Log:
    """What is said, with the seconds since the beginning, on the terminal and in a file."""

    file: TextIO
    begun: float

    def __call__(self, text: str) -> None:
        for line in text.splitlines() or [""]:
            print(self.note(line), flush=True)
        self.file.flush()

    def note(self, line: str) -> str:
        """A line for the file alone, as it stands there."""
        words = f"{time.monotonic() - self.begun:6.1f}  {line}"
        self.file.write(words + "\n")
        return words


@dataclass(slots=True)
class Check:
    """`seconds` for all of it; what it finds is written to `folder` as well. `broken` are the names
    of kernels that did not pass."""

    gpu: Device
    folder: Path
    say: Log
    seconds: float
    failures: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    rows: list[Measurement] = field(default_factory=list)

    def by(self, share: float) -> float:
        """The moment, of time.monotonic(), at which such a share of the time is over."""
        return self.say.begun + share * self.seconds

    def left(self, share: float = 1.0) -> float:
        """Seconds until then."""
        return self.by(share) - time.monotonic()

    def miss(self, what: str) -> None:
        """Something is not run, which is no failure; the end says it once more."""
        self.missed.append(what)
        self.say(f"not run: {what}")

    def fail(self, what: str) -> None:
        self.failures.append(what)
        self.say(f"FAILED {what}")


def run(check: Check, models: Mapping[str, Path] | None) -> None:
    """All of them or, if `models` is None, the sweep of knobs; one that breaks off is a failure,
    and the next one follows."""
    with Comparison() as comparison:  # Ctrl-C does not reach it
        measured = Measured(models)
        parts: dict[str, Callable[[Check], None]] = {
            "the GPU": introduce,
            "compiling": compile_kernels,
            "ceilings, and what goals are of": measured.aim,
            "the engine, beside judging": comparison.begin,
            "judging": judge,
            "compute-sanitizer": sanitize,
            "the engine": comparison.end,
            "measuring the rest": measured.rest,
            "predictions": measured.predict,
            "goals": measured.tell,
        }
        if models is None:
            parts = {"the GPU": introduce, "ceilings, and knobs": measured.sweep}
        for what, part in parts.items():
            check.say(f"{what} ...")
            try:
                part(check)
            except Exception as error:  # a lost device, a full disk: it is said, whatever it is
                check.fail(f"{what} broke off: {type(error).__name__}: {first_line(error)}")
    for missed in check.missed:
        check.say(f"NOT RUN: {missed}")
    check.say(f"{len(check.failures)} failures" if check.failures else "no failure")
    for failure in check.failures:
        check.say(f"  {failure}")


def introduce(check: Check) -> None:
    free, total = check.gpu.memory()
    check.say(f"{check.gpu.identity}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")
    found = {name: versions([name]).get(name, "") for name in PACKAGES}
    found |= nvrtc.tools() | {"cuBLAS": check.gpu.library, "nvdisasm": str(sass.program() or "")}
    found["compute-sanitizer"] = str(sanitizer.program() or "")
    check.say(f"Python {platform.python_version()}, {len(allowed_cores())} cores")
    check.say("here: " + ", ".join(f"{name} {what}" for name, what in found.items() if what))
    if absent := [name for name, what in found.items() if not what]:
        check.say(f"not here: {', '.join(absent)}")


def compile_kernels(check: Check) -> None:
    """All of them. What fails is neither measured nor judged."""
    every, capability = runnable(check.gpu), check.gpu.capability
    if not check.gpu.library:
        check.miss("kernels that need cuBLAS, which is not here")
    until = check.by(COMPILED)
    complaints, unreached = compile_all(every, capability, len(allowed_cores()), until)
    for name, complaint in complaints.items():
        check.fail(f"{name}: {complaint}")
    check.broken |= complaints.keys()
    kernels = [kernel for kernel in every if kernel.name not in check.broken]
    check.say(f"{len(kernels) - len(unreached)} of {len(every)} kernels compiled")
    if unreached:
        check.miss(f"compiling {len(unreached)} kernels ahead, not reached in time")
    tell_resources(check, kernels, capability)


def judge(check: Check) -> None:
    """Every kernel on the GPU. What fails is measured no more."""
    kernels = [kernel for kernel in runnable(check.gpu) if kernel.name not in check.broken]
    store, found = Store(check.folder / "certificates.jsonl"), list[Certificate]()
    try:
        judge_all(kernels, store, RANDOM, check.by(JUDGED), found.append)
    finally:  # whatever breaks off
        tell_verdicts(check, kernels, found)


def tell_resources(check: Check, kernels: Sequence[CudaKernel], capability: int) -> None:
    """Registers and spills of all that was compiled, into the log's file; in a line what spills."""
    launches = {launch.digest: launch for kernel in kernels for launch in kernel.launches}
    spilled, counted = [], 0
    for launch in launches.values():
        if used := nvrtc.resources(launch, capability):
            counted += 1
            name = f"{launch.source} {launch.name}"
            check.say.note(
                f"  {name}: {used.registers} registers, {used.spills} bytes spilled,"
                f" {used.shared} bytes shared"
            )
            spilled += [name] * bool(used.spills)
    what = ", ".join(spilled) or "nothing"
    check.say(f"registers of {counted} launches are in the log; {what} spills")


def tell_verdicts(
    check: Check, kernels: Sequence[CudaKernel], found: Sequence[Certificate]
) -> None:
    """Of those that were tried."""
    passed = [certificate for certificate in found if certificate.passed]
    for certificate in found:
        if not certificate.passed:
            check.fail(f"{certificate.kernel}: {certificate.failure}")
            check.broken.add(certificate.kernel)
    tried = sum(certificate.cases for certificate in found)
    check.say(f"{len(passed)} of {len(kernels)} kernels passed, in {tried:,} cases")
    if passed:
        worst = max(passed, key=lambda certificate: certificate.worst)
        check.say(f"nearest to its bound: {worst.kernel}, at {worst.worst:.2f} of it")
    if unreached := len(kernels) - len(found):
        check.miss(f"the judge on {unreached} kernels, not reached in time")


def sanitize(check: Check) -> None:
    """A sample under each of the sanitizer's tools."""
    path = sanitizer.program()
    if path is None:
        check.miss("compute-sanitizer, which is not here")
        return
    for tool in sanitizer.TOOLS:
        left = check.left(SANITIZED)
        if left <= 0:
            check.miss(f"{tool}, not reached in time")
            continue
        finding = sanitizer.watched(path, tool, left)
        if finding.fault:
            check.fail(f"compute-sanitizer {tool}: {finding.words}")
        elif finding.missed:
            check.miss(f"{tool}: {finding.words}")
        else:
            check.say(f"{tool}: {finding.words}")


class Comparison(ExitStack):
    """Of the engine's logits with the CPU's, in a process of its own, most of whose time goes into
    compiling CPU kernels; it ends with the block."""

    process: "subprocess.Popen[str] | None" = None

    def begin(self, check: Check) -> None:
        if missing := lacking(("gguf", "tokenizers")):
            check.miss(f"the engine, without {' and '.join(missing)}")
            return
        command = [sys.executable, "-m", "bench.cuda.engine", *engine.MODELS]
        self.process = self.enter_context(started(command))

    def end(self, check: Check) -> None:
        """What came of it."""
        if self.process is None:
            return
        try:
            told, complaint = self.process.communicate(timeout=max(1, check.left(COMPARED)))
        except subprocess.TimeoutExpired as late:
            if told := (late.stdout or b"").decode(errors="replace"):
                check.say(told.rstrip())
            check.miss("the engine on further models, not reached in time")
            self.close()
            return
        check.say(told.rstrip())
        if self.process.returncode:
            last = complaint.strip().splitlines()[-1:] or ["logits are too far apart"]
            check.fail(f"the engine: {last[0]}")


class Measured:
    """Ops and steps, as far as the time goes: what goals are of before all else, since a machine
    may be taken back."""

    def __init__(self, models: Mapping[str, Path] | None) -> None:
        self._models = models
        self._results: Results | None = None
        self._ceilings: Ceilings | None = None
        self._predicted: tuple[Sequence[Measurement], Ceilings] | None = None
        self._next = 0  # the first job that was not begun

    def sweep(self, check: Check) -> None:
        """The ceilings, the knobs, and what is better than it was."""
        self.aim(check, 1.0)
        self.rest(check)
        for line in gains(check.rows):
            check.say(f"  {line}")

    def aim(self, check: Check, share: float = AIMED) -> None:
        """The ceilings, then what goals are of."""
        with Revived(jobs.HOME) as child:
            measuring = jobs.Measuring(child, self._models, check.broken)
            ceilings = self._ceilings = measuring.probe(check.left(share))
            if not ceilings.peak:
                check.miss(f"the matmul peak: {ceilings.lacks}")
            check.say(
                f"copies at {ceilings.bandwidth / 1e9:,.0f} GB/s, reads at"
                f" {ceilings.reading / 1e9:,.0f}, multiplies at {ceilings.peak / 1e12:,.0f}"
                f" TFLOP/s, launches in {ceilings.launch * 1e6:.2f} us"
            )
            limits = {"gpu": ceilings.to_json()}
            self._results = Results(check.folder / "results", conditions(), limits)
            first = len(jobs.jobs_of_goals()) if self._models is not None else 0
            self._run(check, measuring, first, share)

    def rest(self, check: Check) -> None:
        """What was not reached, and the engine, and further ops."""
        if self._ceilings is None:
            check.miss("measuring without ceilings")
            return
        with Revived(jobs.HOME) as child:
            measuring = jobs.Measuring(child, self._models, check.broken)
            every = len(measuring.jobs)
            self._run(check, measuring, every, 1.0)
        if self._next < every:
            check.miss(f"{every - self._next} measurements, not reached in time")

    def _run(self, check: Check, measuring: jobs.Measuring, end: int, share: float) -> None:
        """The jobs up to number `end`, until such a share of the time is over."""
        assert self._ceilings is not None
        assert self._results is not None
        while self._next < end and (left := check.left(share)) > 0:
            rows = measuring.rows(self._next, self._ceilings, left)
            self._next += 1
            check.rows += rows
            self._results.add(*rows)
            tell(check, rows)

    def predict(self, check: Check) -> None:
        """What is to be expected on this GPU, if its figures are known."""
        model = next((one for one in gpus().values() if one.name in check.gpu.identity), None)
        why = sass.missing() or ("" if model else f"data/gpus.toml has no {check.gpu.identity}")
        if why or model is None:
            check.miss(f"predictions: {why}")
            return
        self._predicted = of_goals(model), published(model)

    def tell(self, check: Check) -> None:
        """Goals and peers."""
        if self._ceilings is None:
            check.miss("goals without ceilings")
            return
        check.say("goals, beside what was measured here as the limit:")
        for goal in GOALS:
            predicted = goal.figure(*self._predicted) if self._predicted else ""
            check.say("  " + goal.line(check.rows, self._ceilings, predicted))
        check.say("times as long as ours took:")
        for line in peers_lines(check.rows):
            check.say("  " + line)


def tell(check: Check, rows: Sequence[Measurement]) -> None:
    """Of ours."""
    for row in rows:
        if row.contender == OURS and row.samples:
            check.say(f"  {row.title}: {row.median * 1e6:,.1f} us, {row.share:.1%}")
        elif row.contender == OURS:
            check.fail(f"{row.title}: {row.note}")
