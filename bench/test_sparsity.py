"""What skipping neurons leaves of the embedded ReLU model: `pytest bench/test_sparsity.py
--benchmark` measures it (a minute), and `assay report` shows it."""

import time

from pytest_benchmark.fixture import BenchmarkFixture

from bench.benchmarking import Recorder, measure
from bench.plan import Plan
from bench.quality import STORIES, stories
from bench.sparsity import PREDICTED, QUICK, THRESHOLDS, Sparse, sparse
from bench.test_quality import FEW, ONCE


def test_sparsity(benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder) -> None:
    """Neurons that do not fire may be left out for nothing; a higher threshold names fewer, and
    finds fewer of those that fire."""
    full = plan.measuring and not plan.quick
    told = stories(STORIES if full else FEW)
    found: list[Sparse] = []

    def once() -> float:
        started = time.perf_counter()
        found.extend(sparse(told, THRESHOLDS if full else QUICK, plan.threads))
        return time.perf_counter() - started

    benchmark.group = "sparsity"
    measure(benchmark, {"thresholds": once}, ONCE)
    every, firing = (e for e in found if e.kind != PREDICTED)
    assert firing.perplexity == every.perplexity
    predicted = [each for each in found if each.kind == PREDICTED]
    for figures in ([e.share for e in predicted], [e.recall for e in predicted]):
        assert figures == sorted(figures, reverse=True)
    if plan.measuring:
        for each in found:
            recorder.add(*each.measurements(plan.threads))
