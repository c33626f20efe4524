"""What ways to write came to, taken in turns: speeds beside a plain one's, and rows for the lab's
results."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from bench.ratio import Ratio, ratio
from bench.results import Measurement
from bench.speculation.formula import speedup
from bench.speculation.writer import Writer
from bench.timing import Rule, race
from engine.model import Model

BENCH = "speculation"
A_STEP = ", tokens a step"
TOGETHER = 3  # rounds that are drawn as one


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Drafts of a synthetic drafter: `gamma` tokens at a time, each accepted with probability
    `alpha` and for `c` steps of the target. A step that verifies them was measured to cost
    `verifying` steps of one token."""

    alpha: float
    gamma: int
    c: float
    verifying: float

    @property
    def name(self) -> str:
        return f"alpha {self.alpha:g}, {self.gamma} tokens, c {self.c:g}"

    @property
    def allowed(self) -> float:
        """How many times as fast as plain the formula has it."""
        return speedup(self.alpha, self.gamma, self.c)

    @property
    def verified(self) -> float:
        """The same with the measured cost of verifying in place of 1."""
        return speedup(self.alpha, self.gamma, self.c, self.verifying)


@dataclass(frozen=True, slots=True)
class Way:
    """A writer, the name of the way that it is compared with ("": with none), and what it drafts if
    that is synthetic."""

    writer: Writer
    base: str = ""
    drafts: Synthetic | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a way came to: seconds a token of each stretch, and the tokens that a step of the target
    gave on average; `checked`: each text was compared with the plain one."""

    name: str
    base: str
    seconds: Sequence[float]
    tokens_per_step: float
    checked: bool = False
    drafts: Synthetic | None = None

    @property
    def pace(self) -> float:
        """The median of its seconds."""
        return float(np.median(self.seconds))


@dataclass(frozen=True, slots=True)
class Contest:
    """`kind` says what was raced."""

    kind: str
    model: str
    threads: int
    outcomes: Sequence[Outcome]
    notes: Sequence[str] = ()
    rivals: str = field(default_factory=lambda: secrets.token_hex(4))

    def find(self, name: str) -> Outcome:
        return next(o for o in self.outcomes if o.name == name)

    def faster(self, outcome: Outcome) -> Ratio | None:
        """How many times as fast it is as what it is compared with."""
        if not outcome.base:
            return None
        return ratio(self.find(outcome.base).seconds, outcome.seconds, together=TOGETHER)

    def reached(self, outcome: Outcome, verified: bool = False) -> Ratio | None:
        """Of what the formula allows, with the measured cost of verifying if that is asked for."""
        found, drafts = self.faster(outcome), outcome.drafts
        if not found or not drafts:
            return None
        allowed = drafts.verified if verified else drafts.allowed
        return Ratio(found.value / allowed, found.low / allowed, found.high / allowed)

    def measurements(self) -> Iterator[Measurement]:
        """Of each way seconds a token, and tokens a step."""
        for o in self.outcomes:
            row = partial(
                Measurement, BENCH, shape=self.kind, model=self.model, threads=self.threads,
                rivals=self.rivals,
            )  # fmt: skip
            checked = len(o.seconds) if o.checked else 0
            yield row(o.name, samples=tuple(o.seconds), tokens=1, checked=checked)
            yield row(f"{o.name}{A_STEP}", samples=(o.tokens_per_step,), unit="tokens")


def contest(
    kind: str,
    model: Model,
    ways: Mapping[str, Way],
    rule: Rule,
    watch: Callable[[int], None],
    notes: Sequence[str] = (),
) -> Contest:
    """Race the ways; before that each writes one stretch that does not count."""
    writers = {name: way.writer for name, way in ways.items()}
    for writer in writers.values():
        writer()
        writer.tokens = writer.steps = 0
    samples = race(writers, rule, watch)
    outcomes = [
        Outcome(
            name,
            way.base,
            samples[name],
            way.writer.tokens_per_step,
            way.writer.expected is not None,
            way.drafts,
        )
        for name, way in ways.items()
    ]
    return Contest(kind, model.file.path.name, model.team.n_threads, outcomes, notes)
