"""Tunes the knobs of a model's kernels where they run: on its own weights, by all of its threads,
with caches as cold as in a step.

A round goes through the model's weights once for each value of a knob, so that no weight is still
in a cache when it is read again; in steps of more tokens, where weights are little of the time,
through fewer of them. A crossover chooses between two ways, measured in steps of each number of
tokens that it may take. A value is kept if it was faster than its predecessor by more than the
rounds' spread. Whatever is chosen, a step gives the same bits.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, product
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
LEAST = 2**25  # bytes of weights: fewer stay in a cache, and there is nothing to gain
SAMPLE, TOKENS = 2**29, 4  # bytes of weights that a pass goes through, in steps of so many tokens
FEWEST, MOST = 5, 11  # rounds
BUSY = 1.3  # spread of repeated times beyond which nothing can be learnt
CLEARLY = 1.01  # times as fast, or the initial values stay


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes of a step with one kernel and the same sizes: `values` of their knobs, the memory
    that the kernel reads, and the programs of some of the nodes, by number of tokens."""

    kernel: Kernel
    shape: Mapping[str, int]
    values: Array
    programs: Mapping[int, Program]

    def set(self, chosen: Mapping[str, int]) -> None:
        for i, knob in enumerate(self.kernel.knobs):
            self.values[i] = chosen[knob.name]

    def now(self) -> dict[str, int]:
        return {k.name: int(v) for k, v in zip(self.kernel.knobs, self.values, strict=True)}


def quantiles(gains: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """The median, the minimum and the maximum."""
    low, middle, high = (round(float(g), 3) for g in np.quantile(gains, (0, 0.5, 1)))
    return middle, (low, high)


def steps_of(knobs: Iterable[Knob], most: int) -> dict[Knob, list[int]]:
    """Numbers of tokens at which to measure each knob, none above the plan's limit."""
    return {knob: sorted({min(tokens, most) for tokens in knob.tokens}) for knob in knobs}


def groups_of(plan: Plan, known: Mapping[Key, Tuned], threads: int) -> list[Group]:
    """Groups without measurements; with all weights, or as many as make a sample. A node that reads
    the previous node's findings, such as lists of neurons, cannot be run alone: its knobs are
    measured at no number of tokens."""
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

    def program(entries: Sequence[Entry], tokens: int) -> Program:
        share = min(1.0, SAMPLE / total * min(1.0, TOKENS / tokens))
        return Program(entries[: ceil(share * len(entries))])

    groups = []
    for name, (kernel, sizes, entries) in found.items():
        if key_of(kernel, sizes, threads) not in known:
            steps = chain((1,), *steps_of(kernel.knobs, plan.limits["tokens"]).values())
            programs = {tokens: program(entries, tokens) for tokens in steps}
            groups.append(Group(kernel, sizes, plan.knobs[name], programs))
    return groups


class Tuner:
    """Measures a plan's untuned groups in about so many seconds."""

    def __init__(
        self, plan: Plan, team: Team, seconds: float, progress: ProgressCallback | None = None
    ) -> None:
        self.plan, self.team, self.seconds, self.progress = plan, team, seconds, progress
        self.done = self.total = 0

    def tuned(self, again: bool = False) -> list[Tuned]:
        """The values found for each kernel and size, with which the plan runs from now on; nothing
        if the machine is too busy to tell."""
        threads = self.team.n_threads
        groups = groups_of(self.plan, {} if again else load(), threads)
        if not groups:
            return []
        self.plan.arena.view(np.float32)[:] = 1
        knobs = dict.fromkeys(k for group in groups for k in group.kernel.knobs if k.tokens)
        steps = steps_of(knobs, self.plan.limits["tokens"])
        turns = self._turns(groups, steps)
        if not turns:
            return []
        before = [group.now() for group in groups]
        gains: list[dict[str, float]] = [{} for _ in groups]
        for knob in steps:
            having = [i for i, group in enumerate(groups) if knob in group.kernel.knobs]
            gained = self._choose([groups[i] for i in having], knob, steps[knob], turns)
            for i, own in zip(having, gained, strict=True):
                gains[i] |= {knob.name: round(own, 3)} if own > 1 else {}
        after = [group.now() for group in groups]
        whole = self._compared(groups, before, after, (1,), turns)
        for i, (group, gain) in enumerate(zip(groups, whole, strict=True)):
            if np.median(gain) < 1:  # what was faster by itself, or seemed to be, is not
                alone = {k.name: before[i][k.name] for k in group.kernel.knobs if k.tokens == (1,)}
                group.set(after[i] | alone)
                after[i], whole[i] = group.now(), [1.0]
                gains[i] = {name: found for name, found in gains[i].items() if name not in alone}
        when = datetime.now(UTC).isoformat(timespec="seconds")
        return [
            Tuned(*key_of(group.kernel, group.shape, threads), chosen, *quantiles(gain), when, each)
            for group, chosen, gain, each in zip(groups, after, whole, gains, strict=True)
        ]

    def _turns(self, groups: Sequence[Group], steps: dict[Knob, list[int]]) -> int:
        """How many rounds fit into the time; 0 if repeated times differ too much. Knobs for which
        there is no time, the costliest first, are left out."""
        self._pass(groups, 1)
        alike = [sum(self._pass(groups, 1)) for _ in range(5)]
        if max(alike) > BUSY * min(alike):
            return 0
        single = float(np.median(alike))
        costs: dict[Knob, float] = {}
        for knob, tokens in steps.items():
            having = [group for group in groups if knob in group.kernel.knobs]
            each_way = {n: single if n == 1 else sum(self._pass(having, n)) for n in tokens}
            costs[knob] = sum((len(knob.alike(n)) + 2) * each_way[n] for n in tokens)
        end = 2 * single
        while steps and FEWEST * (sum(costs[knob] for knob in steps) + end) > self.seconds:
            del steps[max(steps, key=lambda knob: costs[knob])]
        each = sum(costs[knob] for knob in steps) + end
        turns = max(FEWEST, min(MOST, int(self.seconds / each)))
        passes = 2 + sum(len(knob.alike(n)) + 2 for knob, tokens in steps.items() for n in tokens)
        self.done, self.total = 0, turns * passes
        return turns

    def _pass(self, groups: Sequence[Group], tokens: int) -> list[float]:
        """Seconds of each group's nodes in a step of so many tokens."""
        limits = self.plan.limits
        self.plan.resize(**{name: min(tokens, most) for name, most in limits.items()})
        found = []
        for group in groups:
            started = time.perf_counter()
            self.team.run(group.programs[tokens])
            found.append(time.perf_counter() - started)
        self.done += 1
        if self.progress and self.total:
            self.progress(min(self.done, self.total), self.total)
        return found

    def _choose(
        self, groups: Sequence[Group], knob: Knob, steps: Sequence[int], turns: int
    ) -> list[float]:
        """The best value of this knob for each group, if it still wins when compared with its
        predecessor alone, and its speedup. Steps are weighed by their tokens."""
        before = [group.now() for group in groups]
        seconds = np.zeros((len(knob.values), turns, len(groups)))
        for turn, tokens in product(range(turns), steps):
            ways = knob.alike(tokens)
            for i in np.roll(range(len(ways)), turn):
                for group, values in zip(groups, before, strict=True):
                    group.set({**values, knob.name: ways[i][0]})
                same = [knob.values.index(value) for value in ways[i]]
                seconds[same, turn] += np.divide(self._pass(groups, tokens), tokens)
        after = []
        for values, middle in zip(before, np.median(seconds, axis=1).T, strict=True):
            own = knob.values.index(values[knob.name])  # stays if no step told them apart
            best = own if middle[own] == middle.min() else middle.argmin()
            chosen = knob.values[best]
            after.append({**values, knob.name: chosen})
        gains = self._compared(groups, before, after, steps, turns)
        found = []
        for group, old, new, gain in zip(groups, before, after, gains, strict=True):
            better = np.median(gain) > CLEARLY and np.quantile(gain, 0.25) > 1
            group.set(new if better else old)
            found.append(float(np.median(gain)) if better else 1.0)
        return found

    def _compared(
        self,
        groups: Sequence[Group],
        before: Sequence[Mapping[str, int]],
        after: Sequence[Mapping[str, int]],
        steps: Sequence[int],
        turns: int,
    ) -> list[list[float]]:
        """For each group and round, the speedup with the chosen values."""
        found: list[list[float]] = [[] for _ in groups]
        for turn in range(turns):
            times = np.zeros((2, len(groups)))
            for tokens in steps:
                for which in (0, 1) if turn % 2 else (1, 0):
                    for group, values in zip(groups, (before, after)[which], strict=True):
                        group.set(values)
                    times[which] += np.divide(self._pass(groups, tokens), tokens)
            for gains, old, new in zip(found, *times, strict=True):
                gains.append(float(old / new))
        for group, values in zip(groups, after, strict=True):
            group.set(values)
        return found
