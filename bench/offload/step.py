"""Where a step of a model under a budget waits for the disk.

Nodes are not timed one by one, as in bench/engine/profile.py: one node's weights are read while
others run, so a node's time by itself says nothing.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bench.engine.profile import RULE, ProfileError, check
from bench.offload.meter import Meter, Reading
from bench.race.results import Measurement
from bench.race.timing import Rule, race
from engine.engine import Engine
from engine.sparsity import settings

UNCOUNTED = 2  # steps after which read-ahead is in its steady state


@dataclass(frozen=True, slots=True)
class StreamedStep:
    """The row of a step whose last token sees `context` cells, and the disk reads of all its
    samples."""

    step: Measurement
    context: int
    reading: Reading


def streamed_step(
    engine: Engine,
    tokens: int = 1,
    depth: int = 128,
    rule: Rule = RULE,
    progress: Callable[[int], None] | None = None,
) -> StreamedStep:
    """Time a step of a model with a `ram_budget`, as `bench.engine.profile` times others. Tokens
    are random and fresh for each step: the last ones' neurons are still in memory."""
    model = engine.model
    check(engine, tokens, depth)
    if not model.offload:
        raise ProfileError("this model has no ram_budget: nothing of it is read while it runs")
    rng = np.random.default_rng(0)

    def fresh(count: int) -> list[int]:
        return [int(token) for token in rng.integers(model.config.vocab, size=count)]

    def run() -> float:
        model.cells.remove(0, depth)
        started = time.perf_counter()
        model.evaluate(fresh(tokens), depth)
        return time.perf_counter() - started

    engine.reset()
    try:
        if depth:
            model.evaluate(fresh(depth), 0)
        for _ in range(UNCOUNTED):
            run()
        meter = Meter(model.offload)
        samples = race({"step": run}, rule, progress)["step"]
        reading = meter.read(len(samples))
    finally:
        engine.reset()
    row = Measurement(
        bench="node",
        test="step",
        model=model.file.path.stem,
        settings=settings(model.config, model.options.sparse),
        tokens=tokens,
        threads=model.team.n_threads,
        samples=tuple(samples),
    )
    return StreamedStep(row, depth + tokens, reading)
