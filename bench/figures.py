"""The speed card: which tests give the figures of bench/targets.py, and figures that no race gives.

`pytest bench/test_figures.py --benchmark` measures them and prints the card; bench/report/card.py
computes it from a run's rows.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from bench.contenders.contender import OURS, EngineTest, Setup
from bench.engine.node_cost import cost_of, stored_bytes
from bench.engine.profile import Profile
from bench.machine.limits import Limits
from bench.machine.probe import READ, READS, STEP
from bench.race.experiment import Sampler
from bench.race.results import Measurement
from engine.graph import Value
from engine.model import Model
from kernels.cpu.runtime.sequence import sequence
from kernels.cpu.runtime.share import Share, pack_words
from kernels.cpu.runtime.team import Program

Array = np.ndarray[Any, np.dtype[Any]]
STEP_STREAM, LINEAR_STREAM = "step", "linear nodes"  # the format whose weights a decode streams
READING = "reading"  # the contender that just reads the weights, in turns with a step


@dataclass(frozen=True, slots=True)
class Card:
    """The tests whose ratios are figures: `shallow` and `deep` generate as many tokens; `one` and
    `many` differ in the number of sequences."""

    prompt: EngineTest
    generation: EngineTest
    shallow: EngineTest
    deep: EngineTest
    one: EngineTest
    many: EngineTest

    @property
    def races(self) -> dict[str, tuple[EngineTest, ...]]:
        """Tests that take turns; at another depth the cache would have to be filled each time."""
        return {
            "generation": (self.generation,),
            "prompt": (self.prompt,),
            "batch": (self.one, self.many),
            "shallow": (self.shallow,),
            "deep": (self.deep,),
        }

    def setup(self, threads: int) -> Setup:
        """One setup for all its races. A depth beyond the model's training context costs what any
        does."""
        tests = [test for tests in self.races.values() for test in tests]
        return Setup(
            threads,
            context=max(test.context for test in tests),
            sequences=max(test.parallel for test in tests),
        )


def _card(prompt: int, generate: int, some: int, depths: tuple[int, int], parallel: int) -> Card:
    return Card(
        EngineTest("pp", prompt=prompt),
        EngineTest("tg", generate=generate),
        *(EngineTest("tg", generate=some, depth=depth) for depth in depths),
        *(EngineTest("batched", prompt=some, generate=some, parallel=n) for n in (1, parallel)),
    )


TRIES = 5  # samples of each way to read
FULL = _card(512, 128, 32, (128, 4096), 8)
QUICK = _card(24, 4, 3, (8, 40), 3)


def streamed(model: Model) -> list[Array]:
    """The linear nodes' weights, as their kernels stream them."""
    linear = [
        step.node.arguments["weight"] for step in model.plan.steps if step.node.op == "linear"
    ]
    return [model.plan.array(weight) for weight in linear if isinstance(weight, Value)]


def reading(model: Model) -> Sampler:
    """Seconds in which all threads just read the weights of a decode step, in the fastest way
    here."""
    weights = streamed(model)
    sums = np.zeros(STEP * model.team.n_threads, np.int32)
    blocks = [
        pack_words(READ, {"repeats": 1, "streams": 1, "x": flat, "out": sums})
        for flat in (weight.reshape(-1).view(np.int32) for weight in weights)
    ]

    def program_of(share: Share) -> Program:
        entry, calls = sequence([(share, block) for block in blocks])
        return Program([entry], (blocks, calls, weights, sums))

    def seconds(program: Program) -> float:
        started = time.perf_counter()
        model.team.run(program)
        return time.perf_counter() - started

    programs = [program_of(share) for share in READS.values()]
    return partial(seconds, min(programs, key=lambda p: min(seconds(p) for _ in range(TRIES))))


def streams(
    model: Model, found: Profile, limits: Limits, turns: Mapping[str, Sequence[float]]
) -> list[Measurement]:
    """Bandwidths: bytes of weights over the time of a decode step, over that of reading them alone
    (in turns with it), and over that of the step's linear nodes; and the fastest that the machine
    has ever been seen to read as many."""
    sizes = {"tokens": found.step.tokens, "outputs": 1}
    depth, threads = found.context - found.step.tokens, found.step.threads
    weights = sum(
        stored_bytes(step.node, sizes, cost_of(step, sizes, depth))
        for step in model.plan.steps
        if step.node.op == "linear"
    )
    working_set = round(weights) if weights <= limits.last_level() else None
    moved = limits.bandwidth(threads, working_set)
    linear = np.sum([node.samples for node in found.nodes if node.test == "linear"], axis=0)
    rivals = secrets.token_hex(4)
    samples = [(STEP_STREAM, by, taken, rivals) for by, taken in turns.items()]
    return [
        Measurement(
            bench="stream",
            test=test,
            contender=by,
            model=found.step.model,
            threads=threads,
            settings=found.step.settings,
            samples=tuple(taken),
            bytes=weights,
            limit=f"{limits.level(threads, working_set)} {moved.kind}",
            limit_seconds=weights / moved.per_second,
            limit_spread=moved.spread,
            rivals=together,
        )
        for test, by, taken, together in (*samples, (LINEAR_STREAM, OURS, linear.tolist(), ""))
    ]
