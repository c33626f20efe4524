"""What a step costs before any node does anything: waking the threads, and their barriers."""

import time

from bench.results import Measurement
from engine.model import Model
from kernels.cpu.runtime.team import Program, Team

SAMPLES = 9
STEPS = 200  # a sample: the mean of so many,
SECONDS = 0.05  # or of those that fit in here: threads that share a core are slow to meet


def empty_steps(model: Model) -> list[Measurement]:
    """Seconds of a step whose shares do nothing, on one thread and on all of the model's."""
    plan = model.plan
    program = plan.idle()
    return [
        Measurement(
            bench="empty step",
            test="empty step",
            shape=f"calls={len(plan.calls)},stages={len(plan.stages)}",
            model=model.file.path.stem,
            threads=threads,
            samples=_samples(program, threads),
        )
        for threads in sorted({1, model.team.n_threads})
    ]


def _samples(program: Program, threads: int) -> tuple[float, ...]:
    samples = []
    with Team(threads) as team:
        for _ in range(SAMPLES):
            started = now = time.perf_counter()
            steps = 0
            while steps < STEPS and now < started + SECONDS:
                team.run(program)
                steps += 1
                now = time.perf_counter()
            samples.append((now - started) / steps)
    return tuple(samples)
