"""Who takes part in a measurement on a GPU, and the measurement: all in turns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from bench.cuda.clock import Clock, Enqueue
from bench.timing import Rule, Sampler, race

RULE = Rule(least=7, error=0.005, cap_seconds=0.8, most=200)


@dataclass(frozen=True, slots=True)
class Contender:
    """One who can do it: `enqueue` launches it and does not wait."""

    name: str
    enqueue: Enqueue


@dataclass(frozen=True, slots=True)
class Absent:
    """One who cannot, and why."""

    name: str
    reason: str


Entry = Contender | Absent


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds of a run by name, and those who gave none."""

    samples: dict[str, tuple[float, ...]]
    absent: tuple[Absent, ...]


def contest(clock: Clock, entries: Sequence[Entry], rule: Rule = RULE) -> Outcome:
    """All that can, in turns; who fails is absent, be it at the first try or later."""
    absent = {entry.name: entry.reason for entry in entries if isinstance(entry, Absent)}
    samplers: dict[str, Sampler] = {}

    def sample(one: Contender, repeats: int) -> float:
        if one.name in absent:
            return math.nan
        try:
            return clock.seconds(one.enqueue, repeats)
        except Exception as error:  # peers raise what they like
            absent[one.name] = first_line(error)
            return math.nan

    clock.wake()
    for entry in entries:
        if isinstance(entry, Absent):
            continue
        try:
            samplers[entry.name] = partial(sample, entry, clock.repeats(entry.enqueue))
        except Exception as error:
            absent[entry.name] = first_line(error)
    found = race(samplers, rule) if samplers else {}
    samples = {name: tuple(s) for name, s in found.items() if name not in absent}
    return Outcome(samples, tuple(Absent(*one) for one in absent.items()))


def first_line(error: BaseException) -> str:
    """What it says, shortly."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
