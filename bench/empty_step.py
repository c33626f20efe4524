"""What a step costs before any node does anything: waking the threads, and their barriers."""

import time

from bench.results import Measurement
from engine.model import Model
from kernels.cpu.team import Program, Team

SAMPLES = 9
STEPS = 200  # a sample: the mean of so many


def empty_steps(model: Model) -> list[Measurement]:
    """Seconds of a step whose shares do nothing, on one thread and on more, up to the model's."""
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
        for threads in range(1, model.team.n_threads + 1)
    ]


def _samples(program: Program, threads: int) -> tuple[float, ...]:
    samples = []
    with Team(threads) as team:
        for _ in range(SAMPLES):
            started = time.perf_counter()
            for _ in range(STEPS):
                team.run(program)
            samples.append((time.perf_counter() - started) / STEPS)
    return tuple(samples)
