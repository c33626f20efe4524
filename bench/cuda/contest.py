"""Who takes part in a measurement on a GPU, and the measurement: all in turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from bench.cuda.clock import Clock, Enqueue
from bench.timing import Rule, race

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
    """All that can, in turns; who fails at the first try is absent."""
    samplers, absent = {}, [entry for entry in entries if isinstance(entry, Absent)]
    for entry in entries:
        if isinstance(entry, Absent):
            continue
        try:
            repeats = clock.repeats(entry.enqueue)
        except Exception as error:  # peers raise what they like
            absent.append(Absent(entry.name, first_line(error)))
        else:
            samplers[entry.name] = partial(clock.seconds, entry.enqueue, repeats)
    found = race(samplers, rule) if samplers else {}
    return Outcome({name: tuple(s) for name, s in found.items()}, tuple(absent))


def first_line(error: BaseException) -> str:
    """What it says, shortly."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
