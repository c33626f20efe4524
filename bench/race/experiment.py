"""An experiment: contenders take turns at a case, and their samples become rows of results.

Ops, engines, models under memory budgets, drafts, GPUs and commits differ in contenders and cases;
sampling, when to stop it, and the treatment of a contender that fails are the same for all.
Machines drift: clocks, neighbours, heat. Contenders that take turns within one run drift together,
so their ratio is stable where their times are not.
"""

import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.race.ratio import relative_error
from bench.race.results import Measurement

if TYPE_CHECKING:
    from bench.contenders.contender import Check


Sampler = Callable[[], float]  # measures once and returns the seconds of one call
SLOW = 3  # times the first one's sample, beyond which and beyond its patience,
FEW = 2  # this many samples of a contender must do


@dataclass(frozen=True, slots=True)
class Rule:
    """Stop once the relative error of the median is below `error`, or time is up.

    `least` samples are taken whatever they cost; `cap_seconds` and `most` end what does not settle.
    """

    least: int = 5
    error: float = 0.01
    cap_seconds: float = 1.0
    most: int = 1000

    def enough(self, samples: Sequence[float], elapsed: float) -> bool:
        if len(samples) < self.least:
            return False
        settled = not relative_error(samples) >= self.error  # a dead contender settles, too
        return settled or elapsed >= self.cap_seconds or len(samples) >= self.most


ONCE = Rule(least=1, most=1)


def race(
    contenders: Mapping[str, Sampler], rule: Rule, progress: Callable[[int], None] | None = None
) -> dict[str, list[float]]:
    """Samples of every contender, taken in turns until all have enough. Each round begins with
    another one, so that none always follows the same.

    `progress` receives after each round how many are done.
    """
    started, names, rounds = time.perf_counter(), list(contenders), 0
    samples: dict[str, list[float]] = {name: [] for name in names}
    while not all(rule.enough(s, time.perf_counter() - started) for s in samples.values()):
        first = rounds % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(contenders[name]())
        rounds += 1
        if progress:
            progress(rounds)
    return samples


Race = Callable[[Mapping[str, Sampler], Rule], Mapping[str, list[float]]]


@dataclass(frozen=True, slots=True)
class Sample:
    """One timing: seconds of a call, seconds or amounts of its `parts` by name, and the proof that
    the work was done."""

    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)
    check: "Check | bool | None" = None


@dataclass(slots=True)
class Contender:
    """Someone who takes part in a case.

    row        what is known of it beforehand: its measurement without samples
    measure    takes one sample
    parts      rows like `row` for parts that samples may have, by the part's name
    excused    errors that make it absent from then on; others end the experiment
    patience   seconds of a sample beyond which it rests once it has a few, if it is far slower
               than the first contender at the same test
    absent     why it takes no part, or no more
    taken      its samples so far
    """

    row: Measurement
    measure: Callable[[], Sample] | None = None
    parts: Mapping[str, Measurement] = field(default_factory=dict)
    excused: type[Exception] | tuple[type[Exception], ...] = ()
    patience: float = math.inf
    absent: str = ""
    taken: list[Sample] = field(default_factory=list)


class Experiment:
    """Contenders at one case, by unique names; the others are compared with the first."""

    def __init__(self, contenders: Mapping[str, Contender]) -> None:
        self.contenders = dict(contenders)
        self.rivals = secrets.token_hex(4)
        self._rounds = 0  # counted ones; earlier samples warmed up

    @property
    def samplers(self) -> dict[str, Sampler]:
        """A sampler for each contender. One that fails, or rests, gives NaN from then on."""
        return {
            name: partial(self._sample, one)
            for name, one in self.contenders.items()
            if one.measure and not one.absent
        }

    def run(self, rule: Rule, race: Race = race) -> list[Measurement]:
        """Sample all in turns, until they have settled; returns everyone's rows."""
        if samplers := self.samplers:
            self._rounds = max(map(len, race(samplers, rule).values()))
        return self.rows()

    def rows(self) -> list[Measurement]:
        """The contenders' rows, each with its parts, then who is absent and why."""
        present = [one for one in self.contenders.values() if not one.absent]
        absent = [one for one in self.contenders.values() if one.absent]
        found: list[Measurement] = []
        for one in present:
            taken = one.taken[-self._rounds :]
            checked = one.row.checked or sum(bool(sample.check) for sample in one.taken)
            common: dict[str, Any] = {"checked": checked, "rivals": self.rivals}
            found.append(replace(one.row, samples=tuple(s.seconds for s in taken), **common))
            for part, row in one.parts.items():
                if all(part in sample.parts for sample in taken):
                    values = tuple(sample.parts[part] for sample in taken)
                    found.append(replace(row, samples=values, **common))
        return found + [
            replace(one.row, note=one.absent, rivals=self.rivals, tokens=0, checked=0)
            for one in absent
        ]

    def _sample(self, one: Contender) -> float:
        assert one.measure
        if one.absent or self._rests(one):
            return math.nan
        try:
            one.taken.append(one.measure())
        except one.excused as error:
            one.absent = first_line(error)
            return math.nan
        return one.taken[-1].seconds

    def _rests(self, one: Contender) -> bool:
        alike = (other for other in self.contenders.values() if other.row.test == one.row.test)
        first = next(alike)
        if one is first or len(one.taken) < FEW or not first.taken:
            return False
        return one.taken[-1].seconds > max(one.patience, SLOW * first.taken[-1].seconds)


@dataclass(frozen=True, slots=True)
class Racing:
    """How a program races part after part of its measurements, called `name`: by a rule; `tell`
    receives the part and how many rounds are done."""

    rule: Rule
    tell: Callable[[str], None] = lambda _: None
    name: str = ""

    def say(self, part: str, words: str = "opening") -> None:
        self.tell(f"{self.name}, {part}: {words}")

    def __call__(
        self, part: str, contenders: Mapping[str, Contender], warm: bool = False
    ) -> list[Measurement]:
        """Rows of these in turns; after an uncounted round if they are to be `warm`."""
        raced = Experiment(contenders)
        if warm:
            race(raced.samplers, ONCE)
        progress = partial(race, progress=lambda rounds: self.say(part, f"round {rounds}"))
        return raced.run(self.rule, progress)


def timed(measure: Sampler) -> Callable[[], Sample]:
    """Samples that are seconds only."""
    return lambda: Sample(measure())


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
