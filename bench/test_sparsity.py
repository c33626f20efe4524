"""What skipping neurons leaves of the embedded ReLU model: `pytest bench/test_sparsity.py
--benchmark` measures it (a minute), and `assay report` shows it."""

from pytest_benchmark.fixture import BenchmarkFixture

from bench.quality import LOSS, STORIES, stories
from bench.race.benchmarking import Recorder, once
from bench.race.plan import Plan
from bench.sparsity import ALL, FIRING, PREDICTED, QUICK, RECALL, SHARE, THRESHOLDS, sparse
from bench.test_quality import FEW


def test_sparsity(benchmark: BenchmarkFixture, plan: Plan, recorder: Recorder) -> None:
    """Neurons that do not fire may be left out for nothing; a higher threshold names fewer, and
    finds fewer of those that fire."""
    full = plan.measuring and not plan.quick
    told = stories(STORIES if full else FEW)
    thresholds = THRESHOLDS if full else QUICK
    found = once(benchmark, "sparsity", sparse(told, thresholds, plan.threads))
    figures = {(m.variant, m.test): m.median for m in found}
    assert figures[FIRING, LOSS] == figures[ALL, LOSS]
    for test in (SHARE, RECALL):
        falling = [m.median for m in found if (m.variant, m.test) == (PREDICTED, test)]
        assert falling == sorted(falling, reverse=True)
    recorder.add(*found)
