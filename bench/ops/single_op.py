"""`assay op`: all kernels of an op on one case, judged, and timed in turns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.machine.trials import shares_of_trials
from bench.ops.op_run import Lab, Teller, prepared
from bench.ops.workload import Workload
from bench.race.experiment import Experiment, Rule, race
from bench.race.results import Measurement
from kernels.compiled import compiling
from kernels.cpu.runtime.team import Team, follow, lead
from kernels.judge import Verdict, judge
from kernels.kernel import Kernel
from reference.op import Case

MOST_SECONDS = 60.0  # seconds for one call: somebody is waiting for it
RACE_SECONDS = 0.5  # seconds for each kernel and cache state, unless times settle before


@dataclass(frozen=True, slots=True)
class SingleOp:
    """A kernel on a case. `times` by cache state; none for a wrong kernel."""

    kernel: Kernel
    verdict: Verdict
    times: dict[str, Measurement]


def compile_all(kernels: Sequence[Kernel], teller: Callable[[str], Teller]) -> None:
    """Compile kernels in as many processes as there are cores, and everything else meanwhile in
    this one."""
    teller(f"compiling {', '.join(kernel.name for kernel in kernels)}")(0)
    with compiling(kernels):
        for share in (lead, follow, *shares_of_trials()):
            share.compile()


def single_op(
    kernels: Sequence[Kernel],
    case: Case,
    team: Team,
    teller: Callable[[str], Teller],
    secret: int = 0,
) -> list[SingleOp]:
    """Try every kernel, and time those that pass. `teller` gives a progress callback for each
    phase."""
    tell = teller("trying kernels")
    verdicts: list[Verdict] = []
    for kernel in kernels:
        tell(len(verdicts), len(kernels))
        verdicts.append(judge(kernel, case, secret))
    tell(len(kernels), len(kernels))
    judged = list(zip(kernels, verdicts, strict=True))
    sound = [kernel for kernel, verdict in judged if verdict.passed]
    times = _times(sound, case, team, teller) if sound else {}
    return [SingleOp(kernel, verdict, times.get(kernel.name, {})) for kernel, verdict in judged]


def _times(
    kernels: Sequence[Kernel], case: Case, team: Team, teller: Callable[[str], Teller]
) -> dict[str, dict[str, Measurement]]:
    """By kernel and cache state, all in turns; without samples, but with a note, where a case is
    too large."""
    works = {kernel.name: Workload.on(kernel, case) for kernel in kernels}
    moved = [int(work.cost.bytes) for work in works.values()]
    lab = Lab.for_calls(team, moved, teller, MOST_SECONDS)
    runs, absent = prepared(lab, works, teller("preparing kernels"))
    raced = Experiment({f"{name} {cache}": run.contender() for (name, cache), run in runs.items()})
    progress = teller("timing in turns: rounds")
    rows = raced.run(Rule(cap_seconds=RACE_SECONDS * len(runs)), partial(race, progress=progress))
    made = dict(zip(runs.items(), rows, strict=True))
    if any(run.limited(row).impossible for (_, run), row in made.items()):
        lab.probe_again()  # memory may be faster than when it was probed
    found: dict[str, dict[str, Measurement]] = {kernel.name: {} for kernel in kernels}
    for (name, cache), why in absent.items():
        found[name][cache] = Measurement("op", kernels[0].op, cache=cache, note=why)
    for ((name, cache), run), row in made.items():
        time = run.limited(row)
        found[name][cache] = replace(time, note=time.impossible)
    return found
