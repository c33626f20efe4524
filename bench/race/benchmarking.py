"""Races shown by pytest-benchmark: it sees just the seconds that a sample measured.

A sample is many calls of a kernel, after filling outputs with garbage and sweeping caches, which is
not timed. So its clock advances only by what was measured.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.machine.conditions import Conditions
from bench.machine.limits import Limits
from bench.race.experiment import ONCE, Rule, Sampler, race
from bench.race.results import Measurement, Results


class MeasuredClock:
    """A clock for pytest-benchmark, in seconds, that advances only by measured time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = MeasuredClock()


def measure(
    benchmark: BenchmarkFixture, contenders: Mapping[str, Sampler], rule: Rule
) -> dict[str, list[float]]:
    """Race the contenders, and show the first one's times as the benchmark; returns the samples of
    each.

    A round before that warms up, unless the rule leaves no choice. Where benchmarks are disabled
    there is one round, for its outputs.
    """
    if benchmark.disabled:
        rule = ONCE
    if rule.least < rule.most:
        race(contenders, ONCE)
    taken = race(contenders, rule)
    first = next(iter(taken.values()))
    told = iter(first)

    def tell() -> None:
        CLOCK.now += next(told)

    benchmark.pedantic(tell, rounds=len(first), iterations=1)
    return taken


def once(
    benchmark: BenchmarkFixture, group: str, races: Iterable[Iterable[Measurement]]
) -> list[Measurement]:
    """All rows of these, where the figures are no durations: what is timed is how long it takes to
    compute them."""
    found: list[Measurement] = []

    def take() -> float:
        started = time.perf_counter()
        for rows in races:
            found.extend(rows)
        return time.perf_counter() - started

    benchmark.group = group
    measure(benchmark, {group: take}, ONCE)
    return found


class Recorder:
    """Stores what a `measuring` run finds, on disk from the first measurement on, and nothing of
    another run.

    `limits` are the machine's, as far as known.
    """

    def __init__(
        self, folder: Path, conditions: Conditions, limits: Limits, measuring: bool = True
    ) -> None:
        self.folder, self.conditions, self.limits = folder, conditions, limits
        self.measuring = measuring
        self.results: Results | None = None
        self.rejected: list[str] = []

    def _open(self) -> Results:
        if self.results is None:
            self.results = Results(self.folder, self.conditions, self.limits.to_json())
        return self.results

    def raise_limits(self, found: Limits) -> None:
        """Store ceilings that have risen since the run began."""
        self._open().raise_limits(found.to_json())
        self.limits = found

    def add(self, *measurements: Measurement) -> None:
        """Store rows; fail the benchmark if one is faster than the machine can be."""
        if not self.measuring:
            return
        results = self._open()
        for measurement in measurements:
            reason = measurement.impossible
            results.add(replace(measurement, note=reason) if reason else measurement)
            if reason:
                self.rejected.append(f"{measurement.title}: {reason}")
        if any(m.impossible for m in measurements):
            pytest.fail(self.rejected[-1], pytrace=False)
