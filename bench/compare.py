"""Is B slower than A? Compares two commits or variants measured in turns, or two stored runs.

Where both sides can run now, each runs in processes of its own, and A twice: A's difference from
itself is the noise floor. B is slower only if the interval of the ratio lies above 1, the ratio
lies above the floor, and both still hold when that case is measured once more from the start.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from bench.child import Child, ChildError, settle
from bench.contenders.contender import FAST, OURS
from bench.machine.limits import Limits
from bench.ops.cases import BenchCase
from bench.ops.op_run import Lab, OpRun
from bench.ops.workload import Workload
from bench.race.experiment import Rule, race
from bench.race.ratio import Ratio, ratio
from bench.race.results import Measurement, Run
from bench.trees import Side, TreeError
from engine.progress import ProgressCallback
from kernels.certificates import Key
from kernels.cpu.runtime.team import Team
from kernels.kernel import Kernel
from kernels.table import KERNELS, find

BLOCKS = 8  # blocks, each with fresh memory and inputs
MOST_BLOCKS = 24
NOISY = 1.1  # a factor between A and itself above which more blocks are taken
ROUNDS = 5  # rounds of every block
RULE = Rule(least=ROUNDS, most=ROUNDS)
LEVEL = 0.99
FEWEST = 3  # samples needed for a verdict
MANY = 8  # cases needed for a scatter
UNKNOWN = 1.1  # the factor between two runs where nothing tells how the machine changed
OUTLIER = (
    7.0  # median deviations, almost five standard ones, that no case of many exceeds by chance
)
A, B, AGAIN = "a", "b", "a again"
MINE = (OURS, FAST)


@dataclass(frozen=True, slots=True)
class Compared:
    """One case: median seconds of both sides, b / a, and the factor that noise alone causes."""

    title: str
    a: float
    b: float
    ratio: Ratio
    floor: float

    @property
    def verdict(self) -> str:
        """B is "slower", "faster", or the "same" as A."""
        if not self.ratio.significant or max(self.ratio.value, 1 / self.ratio.value) <= self.floor:
            return "same"
        return "slower" if self.ratio.value > 1 else "faster"

    def weaker(self, other: "Compared") -> "Compared":
        """The one of two measurements that claims less."""
        return min(
            self, other, key=lambda row: (row.verdict != "same", abs(math.log(row.ratio.value)))
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.title,
            "a_seconds": self.a,
            "b_seconds": self.b,
            "ratio": self.ratio.value,
            "low": self.ratio.low,
            "high": self.ratio.high,
            "floor": self.floor,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison; `unmatched` names cases that only one side has, `same_code` counts kernels not
    measured because both sides have the same code."""

    a: str
    b: str
    rows: tuple[Compared, ...]
    interleaved: bool
    unmatched: tuple[str, ...] = ()
    same_code: int = 0

    @property
    def slower(self) -> tuple[Compared, ...]:
        return tuple(row for row in self.rows if row.verdict == "slower")

    def to_json(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "interleaved": self.interleaved,
            "cases": [row.to_json() for row in self.rows],
            "unmatched": list(self.unmatched),
            "same_code": self.same_code,
        }


class Worker:
    """The object in a child: samples kernels of its source tree, one case at a time."""

    def __init__(self, threads: int) -> None:
        self._lab = Lab(Team(threads), Limits.unprobed())
        self._run: OpRun | None = None

    def kernels(self, names: Sequence[str]) -> dict[str, str]:
        """For each kernel that runs here, a digest of everything its machine code is made of; the
        judge's sources do not count."""
        here = [k for k in KERNELS if k.name in set(names) and not k.missing()]
        keys = {kernel.name: Key.of(kernel) for kernel in here}
        return {name: f"{key.source} {key.row}" for name, key in keys.items()}

    def prepare(self, kernel: str, shape: dict[str, int], cache: str) -> None:
        """Prepare this case in fresh memory."""
        self._run = None  # its memory goes before the next is allocated
        work = Workload.of(BenchCase(find(kernel), shape, ()))
        self._run = OpRun(self._lab, work, cache)

    def sample(self) -> float:
        """Seconds of a call."""
        assert self._run is not None
        seconds = self._run()
        settle()
        return seconds


class Workers:
    """Processes that sample kernels, ended with the stack: two of side A, one of side B."""

    def __init__(
        self, a: Side, b: Side, kernels: Iterable[Kernel], threads: int, stack: ExitStack
    ) -> None:
        self.sides = {A: a, B: b, AGAIN: a}
        self._children: dict[str, Child] = {}
        self.digests: dict[str, dict[str, str]] = {}
        for role, side in self.sides.items():
            env = {"PYTHONPATH": str(side.folder), "PYTHONDONTWRITEBYTECODE": "1"}
            child = stack.enter_context(Child("bench.compare:Worker", threads, env=env))
            self._children[role] = child
        every = tuple(kernels)
        for role, side in self.sides.items():  # by now all of them are starting
            names = sorted({side.kernel(kernel) for kernel in every})
            try:
                self.digests[role] = self._children[role].ask("kernels", names=names)
            except ChildError as error:
                reason = str(error).partition("]: ")[2] or str(error)
                raise TreeError(f"{side.name} does not run: {reason}") from None

    def sample(self, case: BenchCase, cache: str) -> dict[str, list[float]]:
        """Take blocks of rounds: every block in fresh memory, every round with the sides in turns;
        more blocks while A differs much from itself."""
        samples: dict[str, list[float]] = {role: [] for role in self.sides}
        samplers = {role: partial(child.ask, "sample") for role, child in self._children.items()}
        for block in range(MOST_BLOCKS):
            if block >= BLOCKS and _noise(samples) < NOISY:
                break
            for role, side in self.sides.items():
                asked = {"shape": dict(case.shape), "cache": cache}
                self._children[role].ask("prepare", kernel=side.kernel(case.kernel), **asked)
            for role, taken in race(samplers, RULE).items():
                samples[role] += taken
        return samples


def measured(
    a: Side,
    b: Side,
    cases: Sequence[tuple[BenchCase, str]],
    threads: int,
    everything: bool = False,
    progress: ProgressCallback | None = None,
) -> Comparison:
    """Measure both sides now, in turns; kernels with the same sources only if `everything`."""
    with ExitStack() as stack:
        running = Workers(a, b, (case.kernel for case, _ in cases), threads, stack)
        wanted, unmatched, same = [], [], set()
        for case, cache in cases:
            names = a.kernel(case.kernel), b.kernel(case.kernel)
            digests = [running.digests[r].get(name) for r, name in zip((A, B), names, strict=True)]
            if None in digests:
                unmatched += [n for n, digest in zip(names, digests, strict=True) if not digest]
            elif digests[0] == digests[1] and not everything:
                same.add(names[0])
            else:
                wanted.append((case, cache))
        rows = _rows(wanted, running, progress)
    doubtful = [i for i, row in enumerate(rows) if row.verdict != "same"]
    if doubtful:  # it may have been chance: other processes, other memory, other minutes
        with ExitStack() as stack:
            running = Workers(a, b, (wanted[i][0].kernel for i in doubtful), threads, stack)
            second = _rows([wanted[i] for i in doubtful], running, progress)
        for i, row in zip(doubtful, second, strict=True):
            rows[i] = row.weaker(rows[i])
    alone = tuple(dict.fromkeys(unmatched))
    return Comparison(a.name, b.name, tuple(rows), True, alone, len(same))


def _rows(
    cases: Sequence[tuple[BenchCase, str]], running: Workers, progress: ProgressCallback | None
) -> list[Compared]:
    """The cases' rows; a case's floor is how far A is from itself there, but at least the median
    case's."""
    samples = []
    for case, cache in cases:
        samples.append(running.sample(case, cache))
        if progress:
            progress(len(samples), len(cases))
    floors = [_noise(taken) for taken in samples]
    common = median(floors) if floors else 1.0
    return [
        Compared(
            f"{case} {cache}",
            median(taken[A]),
            median(taken[B]),
            ratio(taken[B], taken[A], level=LEVEL, together=ROUNDS),
            max(floor, common),
        )
        for (case, cache), taken, floor in zip(cases, samples, floors, strict=True)
    ]


def _noise(samples: Mapping[str, Sequence[float]]) -> float:
    """The factor by which A may differ from itself."""
    return ratio(samples[AGAIN], samples[A], level=LEVEL, together=ROUNDS).farthest


def stored(a: Run, b: Run, again: Run | None = None) -> Comparison:
    """Compare two stored runs by the cases that both measured.

    They did not take turns, so changes of the machine in between count as well. The floor is
    estimated from how far the halves of each run's samples differ; how far peers, which did not
    change, differ; how far most cases differ, since most did not change either; and how far a
    second run of A differs from A (`again`).
    """
    ours, theirs = _ours(a), _ours(b)
    third = _ours(again) if again else {}
    common = sorted(ours.keys() & theirs.keys())
    floor = max(_drift(a, b), _scatter([theirs[k].median / ours[k].median for k in common]))
    rows = []
    for key in common:
        first, second = ours[key], theirs[key]
        floors = [floor, _halves(first), _halves(second)]
        if key in third:
            floors.append(ratio(third[key].samples, first.samples, level=LEVEL).farthest)
        found = ratio(second.samples, first.samples, level=LEVEL)
        rows.append(Compared(first.title, first.median, second.median, found, max(floors)))
    alone = tuple((ours | theirs)[key].title for key in sorted(ours.keys() ^ theirs.keys()))
    rows.sort(key=lambda row: -row.ratio.value)
    return Comparison(a.run, b.run, tuple(rows), False, alone)


def _ours(run: Run) -> dict[tuple[Any, ...], Measurement]:
    """Our own times; a stream's repeat those of a node's rows."""
    return {
        m.key: m
        for m in run.measurements
        if m.contender in MINE and m.phase == "run" and m.unit == "s" and m.bench != "stream"
        if len(m.samples) >= FEWEST
    }


def _halves(m: Measurement) -> float:
    middle = len(m.samples) // 2
    if middle < FEWEST:
        return 1.0
    return ratio(m.samples[:middle], m.samples[middle:], level=LEVEL).farthest


def _drift(a: Run, b: Run) -> float:
    """The median peer's difference from itself."""
    before, after = (
        {m.key: m.median for m in run.measurements if m.contender not in MINE and m.samples}
        for run in (a, b)
    )
    ratios = [after[key] / before[key] for key in before.keys() & after.keys()]
    return math.exp(abs(math.log(median(ratios)))) if ratios else 1.0


def _scatter(ratios: Sequence[float]) -> float:
    """The median case's ratio, and OUTLIER times the median deviation from it."""
    if len(ratios) < MANY:
        return UNKNOWN
    logs = np.log(ratios)
    middle = float(np.median(logs))
    return math.exp(abs(middle) + OUTLIER * float(np.median(np.abs(logs - middle))))
