"""One op alone: all its kernels on one case, judged, and timed in turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from bench.machine.limits import limits
from bench.machine.trials import shares_of_trials
from bench.ops.cases import CACHES, BenchCase
from bench.ops.op_run import Lab, OpRun, TooMuchError
from bench.ops.workload import MAKERS, Workload
from bench.race.experiment import Experiment
from bench.race.results import Measurement
from bench.race.timing import Rule, race
from kernels.compiled import compiling
from kernels.cpu.runtime.team import Team, follow, lead
from kernels.judge import Verdict, judge
from kernels.kernel import Kernel
from reference.op import Arguments, Case

MOST_SECONDS = 60.0  # for one call: whoever asks for a case waits for it
RACE_SECONDS = 0.5  # for each kernel on each cache, where times do not settle before

Teller = Callable[..., None]  # of how much is done and, if known, of how much


@dataclass(frozen=True, slots=True)
class Alone:
    """A kernel on a case. `times` by cache are none for a wrong kernel."""

    kernel: Kernel
    verdict: Verdict
    times: dict[str, Measurement]


@dataclass(frozen=True, slots=True)
class Asked(Workload):
    """A benchmark's work on a case of someone's choice: its values and seed, and any sizes."""

    case: Case

    @classmethod
    def to(cls, kernel: Kernel, case: Case) -> "Asked":
        work = Workload.of(BenchCase(kernel, case.shape, ()))
        if _beyond_models(case):  # a token sees fewer cells: those cost
            begin, end = kernel.spec.make(case)["spans"][:, 1:].T
            seen = {**case.shape, "capacity": float(np.mean(end - begin)) if end.size else 0.0}
            cost = kernel.spec.cost(seen, kernel.format)  # type: ignore[arg-type]
            return cls(work.bench, cost, case)
        return cls(work.bench, work.cost, case)

    def inputs(self) -> Arguments:
        spec = self.bench.kernel.spec
        make = spec.make if _beyond_models(self.case) else MAKERS.get(spec.name, spec.make)
        return make(self.case)


def _beyond_models(case: Case) -> bool:
    """Whether it is an attention such as no benchmark has: theirs is plain, over one sequence."""
    s = case.shape
    if not {"tokens", "capacity", "sequences"} <= s.keys():
        return False
    special = s.get("windowed") or s.get("alibi") or s.get("softcapped")
    return bool(special or s["sequences"] > 1 or s["tokens"] > s["capacity"])


def compile_all(kernels: Sequence[Kernel], teller: Callable[[str], Teller]) -> None:
    """Compile them in as many processes as there are cores, and meanwhile here what else runs."""
    teller(f"compiling {', '.join(kernel.name for kernel in kernels)}")(0)
    with compiling(kernels):
        for share in (lead, follow, *shares_of_trials()):
            share.compile()


def alone(
    kernels: Sequence[Kernel],
    case: Case,
    team: Team,
    teller: Callable[[str], Teller],
    secret: int = 0,
) -> list[Alone]:
    """Try every kernel, and time those that pass. `teller` gives a teller for each thing done."""
    tell = teller("trying kernels")
    verdicts: list[Verdict] = []
    for kernel in kernels:
        tell(len(verdicts), len(kernels))
        verdicts.append(judge(kernel, case, secret))
    tell(len(kernels), len(kernels))
    judged = list(zip(kernels, verdicts, strict=True))
    sound = [kernel for kernel, verdict in judged if verdict.passed]
    times = _times(sound, case, team, teller) if sound else {}
    return [Alone(kernel, verdict, times.get(kernel.name, {})) for kernel, verdict in judged]


def _times(
    kernels: Sequence[Kernel], case: Case, team: Team, teller: Callable[[str], Teller]
) -> dict[str, dict[str, Measurement]]:
    """By kernel and cache, all in turns; without samples, but with a note, what took too much."""
    counts = (team.n_threads,)
    moved = [int(Asked.to(kernel, case).cost.bytes) for kernel in kernels]
    found_here = limits(counts, teller("probing the machine (once)"), moved=moved)
    lab = Lab(team, found_here, MOST_SECONDS)
    found: dict[str, dict[str, Measurement]] = {kernel.name: {} for kernel in kernels}
    runs: dict[str, OpRun] = {}
    tell = teller("preparing kernels")
    for i, kernel in enumerate(kernels):
        tell(i, len(kernels))
        for cache in CACHES:
            try:
                runs[f"{kernel.name} {cache}"] = OpRun(lab, Asked.to(kernel, case), cache)
            except TooMuchError as error:
                found[kernel.name][cache] = Measurement(
                    "op", kernel.op, cache=cache, note=str(error)
                )
    tell(len(kernels), len(kernels))
    rule = Rule(cap_seconds=RACE_SECONDS * len(runs))
    raced = Experiment({name: run.contender() for name, run in runs.items()})
    rows = raced.run(rule, partial(race, progress=teller("timing in turns: rounds")))
    made = list(zip(runs.values(), rows, strict=True))
    if any(
        run.limited(row).impossible for run, row in made
    ):  # memory may be faster than when probed
        again = teller("probing the machine again")
        lab.limits = limits(counts, again, again=True, moved=moved)
    for run, row in made:
        time = run.limited(row)
        found[run.work.bench.kernel.name][run.cache] = replace(time, note=time.impossible)
    return found
