"""The knobs of a model's kernels, measured where they run: on its own weights, by all of its
threads, as cold as a step finds them.

A turn goes through the model's weights once for each value of a knob, so that none of them is still
in a cache when it comes to them again. A value is kept if it was faster than the one before it by
more than turns differ. Whatever is chosen, a step gives the same bits.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil

import numpy as np

from engine.compile.plan import TUNING, Plan, shape_of
from engine.graph import Value
from engine.progress import ProgressCallback
from kernels.cpu.runtime.sequence import Entry
from kernels.cpu.runtime.team import Program, Team
from kernels.kernel import Kernel
from kernels.knob import Knob
from kernels.tuning import Key, Tuned, key_of, load
from reference.op import Array

AT_LOAD = 8.0  # seconds that measuring may take while a model loads
LEAST = 2**25  # bytes of weights: fewer lie in a cache, and there is nothing to gain
SAMPLE = 2**29  # bytes of weights that a turn goes through
FEWEST, MOST = 5, 11  # turns
BUSY = 1.3  # times that the same may take longer than it did, or there is nothing to learn
CLEARLY = 1.01  # times as fast, or the values it began with stay


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes of a step with one kernel and the same sizes: `values` of their knobs, which is the
    memory that the kernel reads, and what runs some of the nodes."""

    kernel: Kernel
    shape: Mapping[str, int]
    values: Array
    program: Program

    def set(self, chosen: Mapping[str, int]) -> None:
        for i, knob in enumerate(self.kernel.knobs):
            self.values[i] = chosen[knob.name]

    def now(self) -> dict[str, int]:
        return {k.name: int(v) for k, v in zip(self.kernel.knobs, self.values, strict=True)}


def quantiles(gains: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The median, and the least and the most."""
    low, middle, high = (round(float(g), 3) for g in np.quantile(gains, (0, 0.5, 1)))
    return middle, (low, high)


def groups_of(plan: Plan, known: Mapping[Key, Tuned], threads: int) -> list[Group]:
    """Those of which nothing is known; of all weights, as many as make a sample. Who reads what the
    step before it found, such as lists of neurons, cannot be run by itself: its knobs are of no
    number of tokens."""
    found: dict[str, tuple[Kernel, Mapping[str, int], list[Entry]]] = {}
    total = 0
    for call, entry in zip(plan.calls, plan.entries, strict=True):
        if (value := call.arguments.get(TUNING)) is None:
            continue
        assert isinstance(value, Value)
        step = plan.steps[call.step]
        if not any(knob.tokens for knob in step.kernel.knobs):
            continue
        shape = shape_of(step.node, {})
        group = found.setdefault(value.name, (step.kernel, shape, []))
        group[2].append(entry)
        total += sum(plan.array(v).nbytes for v in call.values() if v.kind == "weight")
    if total < LEAST:
        return []
    share = min(1.0, SAMPLE / total)
    return [
        Group(kernel, shape, plan.knobs[name], Program(entries[: ceil(share * len(entries))]))
        for name, (kernel, shape, entries) in found.items()
        if key_of(kernel, shape, threads) not in known
    ]


class Tuner:
    """Measures what nothing is known of in a plan, in about so many seconds."""

    def __init__(
        self, plan: Plan, team: Team, seconds: float, progress: ProgressCallback | None = None
    ) -> None:
        self.plan, self.team, self.seconds, self.progress = plan, team, seconds, progress
        self.done = self.total = 0

    def tuned(self, again: bool = False) -> list[Tuned]:
        """What was found for each kernel and size; the plan runs with it from now on. Nothing, if
        the machine is too busy to tell."""
        threads = self.team.n_threads
        groups = groups_of(self.plan, {} if again else load(), threads)
        if not groups:
            return []
        self.plan.arena.view(np.float32)[:] = 1
        knobs = list(dict.fromkeys(k for group in groups for k in group.kernel.knobs))
        turns = self._turns(groups, knobs)
        if not turns:
            return []
        before = [group.now() for group in groups]
        for knob in knobs:
            self._choose(groups, knob, turns)
        after = [group.now() for group in groups]
        gains = self._compared(groups, before, after, (1,), turns)
        for i, (group, gain) in enumerate(zip(groups, gains, strict=True)):
            if np.median(gain) < 1:  # what was faster by itself, or seemed to be, is not
                alone = {k.name: before[i][k.name] for k in group.kernel.knobs if k.tokens == (1,)}
                group.set(after[i] | alone)
                after[i], gains[i] = group.now(), [1.0]
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return [
            Tuned(*key_of(group.kernel, group.shape, threads), chosen, *quantiles(gain), when)
            for group, chosen, gain in zip(groups, after, gains, strict=True)
        ]

    def _turns(self, groups: Sequence[Group], knobs: Sequence[Knob]) -> int:
        """How many turns fit into the time; 0 if the same takes too different times."""
        self._pass(groups, (1,))
        alike = [sum(self._pass(groups, (1,))) for _ in range(5)]
        if max(alike) > BUSY * min(alike):
            return 0
        several = sum(self._pass(groups, (4,)))
        each = (float(np.median(alike)) + several) / 2
        passes = sum((len(knob.values) + 2) * len(knob.tokens) for knob in knobs) + 2
        turns = max(FEWEST, min(MOST, int(self.seconds / (each * passes))))
        self.done, self.total = 0, turns * passes
        return turns

    def _pass(self, groups: Sequence[Group], steps: Sequence[int]) -> list[float]:
        """Seconds of each group's nodes in steps of so many tokens, added up."""
        found = [0.0] * len(groups)
        for wanted in steps:
            tokens = min(wanted, *self.plan.limits.values())
            self.plan.resize(tokens=tokens, outputs=tokens)
            for i, group in enumerate(groups):
                started = time.perf_counter()
                self.team.run(group.program)
                found[i] += time.perf_counter() - started
            self.done += 1
            if self.progress and self.total:
                self.progress(min(self.done, self.total), self.total)
        return found

    def _choose(self, groups: Sequence[Group], knob: Knob, turns: int) -> None:
        """The best value of this knob for each group that has it, if it is better indeed when only
        it and the value before it are compared."""
        having = [group for group in groups if knob in group.kernel.knobs]
        before = [group.now() for group in having]
        seconds = np.zeros((len(knob.values), turns, len(having)))
        for turn in range(turns):
            for i in np.roll(range(len(knob.values)), turn):
                for group, values in zip(having, before, strict=True):
                    group.set({**values, knob.name: knob.values[i]})
                seconds[i, turn] = self._pass(having, knob.tokens)
        best = np.median(seconds, axis=1).argmin(axis=0)
        after = [{**v, knob.name: knob.values[i]} for v, i in zip(before, best, strict=True)]
        gains = self._compared(having, before, after, knob.tokens, turns)
        for group, old, new, gain in zip(having, before, after, gains, strict=True):
            better = np.median(gain) > CLEARLY and np.quantile(gain, 0.25) > 1
            group.set(new if better else old)

    def _compared(
        self,
        groups: Sequence[Group],
        before: Sequence[Mapping[str, int]],
        after: Sequence[Mapping[str, int]],
        steps: Sequence[int],
        turns: int,
    ) -> list[list[float]]:
        """For each group, by turns, how many times as fast it is with what was chosen."""
        found: list[list[float]] = [[] for _ in groups]
        for turn in range(turns):
            times = {}
            for which in (0, 1) if turn % 2 else (1, 0):
                for group, values in zip(groups, (before, after)[which], strict=True):
                    group.set(values)
                times[which] = self._pass(groups, steps)
            for gains, old, new in zip(found, times[0], times[1], strict=True):
                gains.append(old / new)
        for group, values in zip(groups, after, strict=True):
            group.set(values)
        return found
