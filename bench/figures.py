"""The speed card: which tests give the figures of bench/targets.py, and those that no race gives.

`pytest bench/test_figures.py --benchmark` measures them and prints the card; bench/report/card.py
makes it of a run's rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.contenders.contender import Setup
from bench.engine_tests import EngineTest
from bench.limits import Limits
from bench.node_cost import cost_of, stored_bytes
from bench.profile import Profile
from bench.results import Measurement
from engine.model import Model

STREAMS = ("step", "linear nodes")  # of which a decode streams its weights


@dataclass(frozen=True, slots=True)
class Card:
    """The tests whose ratios are figures: `shallow` and `deep` generate as many tokens; `one` and
    `many` differ in their sequences."""

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
        """For all of its races. A depth beyond what a model was made for costs what any does."""
        tests = [test for tests in self.races.values() for test in tests]
        return Setup(
            threads,
            context=max(test.context for test in tests),
            sequences=max(test.parallel for test in tests),
        )


def _card(prompt: int, generate: int, some: int, depths: tuple[int, int], parallel: int) -> Card:
    one, many = (
        EngineTest("batched", prompt=some, generate=some, parallel=n) for n in (1, parallel)
    )
    shallow, deep = (EngineTest("tg", generate=some, depth=depth) for depth in depths)
    return Card(
        EngineTest("pp", prompt=prompt),
        EngineTest("tg", generate=generate),
        shallow,
        deep,
        one,
        many,
    )


FULL = _card(512, 128, 32, (128, 4096), 8)
QUICK = _card(24, 4, 3, (8, 40), 3)


def streams(model: Model, found: Profile, limits: Limits) -> list[Measurement]:
    """Bytes of weights over the time of a decode step, and over that of its linear nodes alone,
    against the fastest that the machine reads as many."""
    sizes, depth = {"tokens": found.tokens, "outputs": 1}, found.context - found.tokens
    weights = sum(
        stored_bytes(step.node, sizes, cost_of(step.node, sizes, depth))
        for step in model.plan.steps
        if step.node.op == "linear"
    )
    working_set = round(weights) if weights <= limits.last_level() else None
    moved = limits.bandwidth(found.threads, working_set)
    linear = np.sum([node.samples for node in found.nodes if node.op == "linear"], axis=0)
    samples: Sequence[Sequence[float]] = (found.samples, linear.tolist())
    return [
        Measurement(
            bench="stream",
            test=test,
            model=found.model,
            threads=found.threads,
            samples=tuple(taken),
            bytes=weights,
            limit=f"{limits.level(found.threads, working_set)} {moved.kind}",
            limit_seconds=weights / moved.bytes_per_second,
            limit_spread=moved.spread,
        )
        for test, taken in zip(STREAMS, samples, strict=True)
    ]
